"""examples/cluster: its program under Open MPI, a rank in each of two machines; and the form of its manifest.

usage: mpi.py GPUSHIM SHIM LIBCUDA AGENT BROKER EXAMPLES CUDA_INCLUDE
"""
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(__file__))
from machines import LIBCUDA, check, cluster_of, end_with_faults, skip

EXAMPLES, INCLUDE = sys.argv[6:8]

# Open MPI's way to another host, in the place of ssh: into that machine's namespaces.
REMOTE = '''#!/bin/sh
host=$1
shift
exec nsenter -t "$(cat FOLDER/anchor-$host)" -n -m -- sh -c "$*"
'''


def check_manifest():
    try:
        import yaml
    except ImportError:
        print('the manifest is not looked at: there is no yaml (Debian: python3-yaml)')
        return
    with open(os.path.join(EXAMPLES, 'kubernetes.yaml'), encoding='utf-8') as file:
        domain, pods = yaml.safe_load_all(file)
    template = pods['spec']['template']['spec']
    channel = domain['spec']['channel']['resourceClaimTemplate']['name']
    claims = {claim['name']: claim['resourceClaimTemplateName'] for claim in template['resourceClaims']}
    volumes = {volume['name'] for volume in template['volumes']}
    check(domain['kind'] == 'ComputeDomain' and domain['apiVersion'].startswith('resource.nvidia.com/'), 'its kind')
    check(list(claims.values()) == [channel], f'the pods claim the domain\'s channel: {claims}')
    for container in template['containers']:
        check({mount['name'] for mount in container['volumeMounts']} <= volumes, f'{container["name"]}: its volumes')
        check({'name': 'GPUSHIM_SHARE_DIR', 'value': '/run/gpushim'} in container['env'],
              f'{container["name"]}: the folder')
        for claim in container.get('resources', {}).get('claims', []):
            check(claim['name'] in claims, f'{container["name"]}: its claim')
    check(sum('claims' in container.get('resources', {}) for container in template['containers']) == 1,
          'the program alone has the channel')


def build(cluster):
    program = os.path.join(cluster.folder, 'message')
    ran = subprocess.run(['mpicc', '-o', program, os.path.join(EXAMPLES, 'message.c'),
                          *(['-I', INCLUDE] if INCLUDE else []),
                          LIBCUDA], capture_output=True, text=True, check=False)
    if ran.returncode:
        skip(f'the program cannot be built with mpicc (Debian: libopenmpi-dev): {ran.stderr[-300:]}')
    return program


def play(cluster):
    program = build(cluster)
    remote = os.path.join(cluster.folder, 'remote')
    with open(remote, 'w', encoding='utf-8') as file:
        file.write(REMOTE.replace('FOLDER', cluster.folder))
    os.chmod(remote, 0o700)
    for machine in cluster.machines:
        with open(f'{cluster.folder}/anchor-{machine.address}', 'w', encoding='ascii') as file:
            file.write(str(machine.anchor))
    one, two = cluster.start()
    settings = {**one.environment(), **one.sharing()}
    passed = [word for name in ('LD_PRELOAD', 'LD_LIBRARY_PATH', 'SOFTCUDA_FABRIC', 'GPUSHIM_SHARE_DIR',
                                'GPUSHIM_SHARE_STRATEGY', 'GPUSHIM_SHARE_BROKER', 'GPUSHIM_SHARE_REACH')
              for word in ('-x', f'{name}={settings[name]}')]
    command = ['mpirun', '--allow-run-as-root', '--mca', 'plm_rsh_agent', remote, '--mca', 'btl', 'tcp,self', '--mca',
               'btl_tcp_if_include', 'eth0', '--mca', 'oob_tcp_if_include', 'eth0', '--mca', 'pml', 'ob1', '--host',
               f'{one.address}:1,{two.address}:1', '-n', '2', *passed, program]
    process = one.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    check(process.returncode == 0 and 'has its bytes: yes' in out,
          f'it reads the other machine\'s memory: {process.returncode}, {out}, {err[-1500:]}, {one.said()} '
          f'{two.said()}')


def main():
    check_manifest()
    for program in ('mpirun', 'mpicc'):
        if not shutil.which(program):
            skip(f'there is no {program} (Debian: openmpi-bin, libopenmpi-dev)')
    cluster = cluster_of(2, ['separate'])
    try:
        play(cluster)
        end_with_faults()
    finally:
        cluster.end()


main()
