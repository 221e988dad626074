"""The manifests of examples/containers: each fits the schemas of the Kubernetes versions that have its kind, and a
mistake in one would be noticed. The admission policy's expressions are evaluated, and what they give is put together
with pods as an API server does it: then these have the library, and keep what they had. What kustomize makes of all
of them fits together: monitor, service and exporter, namespaces, images, and the folders that one makes and others
mount.

There is no API server here: what one refuses beyond its schemas is not seen. kubernetes.py starts this.

usage: manifests.py FOLDER_OF_EXAMPLES
"""
import copy
import glob
import os
import shutil
import subprocess
import sys

import celpy
import celpy.adapter
import kubernetes_validate
import yaml
from celpy.celtypes import MapType

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from faults import check, end_with_faults, faults

examples = sys.argv[1]
# The oldest versions that are looked at; of some kinds there was no v1 before.
OLDEST, OLDEST_OF = 28, {'MutatingAdmissionPolicy': 36, 'MutatingAdmissionPolicyBinding': 36, 'ResourceClaim': 34}
CLAIMED = '/run/nvidia-dra/local-ipc' # where NVIDIA's DRA driver mounts a claim's folder
LIBRARY = '/opt/gpushim/lib/libgpushim.so'
LABEL = {'libgpushim.dev/library': 'on'}
# By which member the items of a list are one and the same, as Kubernetes' schemas say.
KEYS = {'containers': 'name', 'volumes': 'name', 'env': 'name', 'volumeMounts': 'mountPath'}


def manifests_of(name):
    with open(os.path.join(examples, name), encoding='utf-8') as file:
        return list(yaml.safe_load_all(file))


# ---- Schemas ---------------------------------------------------------------------------------------------


def refusal(manifest, version):
    """Why the schemas of a version refuse it; None: they do not."""
    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f'{"/".join(str(part) for part in error.path)}: {error.message}'
    except kubernetes_validate.SchemaNotFoundError as error:
        return error.message
    return None


def newest():
    return int(kubernetes_validate.latest_version().split('.')[1])


def versions_of(manifests):
    """Those that have all of a file's kinds: what belongs together is used together."""
    oldest = max(OLDEST_OF.get(manifest['kind'], OLDEST) for manifest in manifests)
    return [f'1.{minor}' for minor in range(oldest, newest() + 1)]


def mistakes(manifest):
    """Copies with one each."""
    yield {**manifest, 'nonsense': 1}
    yield {**manifest, 'kind': manifest['kind'] + 's'}
    yield {**manifest, 'spec': {**manifest.get('spec', {}), 'contianers': []}}
    yield {**manifest, 'metadata': {'name': 1}}


def check_schemas(name):
    manifests = manifests_of(name)
    versions = versions_of(manifests)
    for manifest in manifests:
        what = f'{name}: {manifest["kind"]} {manifest["metadata"]["name"]}'
        check(len(versions) > 1, f'{what}: versions {versions}')
        for version in versions:
            why = refusal(manifest, version)
            check(not why, f'{what}: Kubernetes {version}: {why}')
        for mistake in mistakes(manifest):
            check(refusal(mistake, versions[-1]), f'{what}: a mistake goes unnoticed: {mistake}')


# ---- Evaluating the policy -------------------------------------------------------------------------------


class Type(MapType):
    """What an expression calls Object.spec.containers: makes an object of that type."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def __getitem__(self, name):
        return Type(f'{self.path}.{name}')

    def __call__(self, members):
        return Made(self.path, members)


class Made(MapType):
    """An object, and of which type an expression made it."""

    def __init__(self, path, members):
        super().__init__(members)
        self.path = path


def plain(value, path='Object'):
    """As ordinary Python; each object is to be of the type that its place has."""
    if isinstance(value, celpy.CELEvalError):
        raise value
    if isinstance(value, dict):
        check(getattr(value, 'path', path) == path, f'at {path} there is an {getattr(value, "path", "")}')
        return {str(name): plain(each, f'{path}.{name}') for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each, path) for each in value]
    return bool(value) if isinstance(value, celpy.celtypes.BoolType) else str(value)


def evaluate(expression, pod, variables):
    """cel-python 0.5 takes `a ? b : c` as a member's value for a: it has to be in brackets."""
    environment = celpy.Environment()
    program = environment.program(environment.compile(expression))
    return plain(program.evaluate({'object': celpy.adapter.json_to_cel(pod), 'Object': Type('Object'),
                                   'variables': celpy.adapter.json_to_cel(variables)}))


def merged(there, applied, name=None):
    """What server-side apply makes of two values."""
    if isinstance(applied, dict) and isinstance(there, dict):
        return {**there, **{key: merged(there.get(key), value, key) for key, value in applied.items()}}
    if isinstance(applied, list) and name in KEYS:
        key = KEYS[name]
        found = {each[key]: each for each in there or []}
        for each in applied:
            found[each[key]] = merged(found.get(each[key]), each)
        return list(found.values())
    return applied


class Policy:
    """A MutatingAdmissionPolicy, of which no other parts are known than those that the example has."""

    def __init__(self, manifest):
        spec = manifest['spec']
        check(set(spec) == {'failurePolicy', 'reinvocationPolicy', 'matchConstraints', 'matchConditions', 'variables',
                            'mutations'} and set(spec['matchConstraints']) == {'objectSelector', 'resourceRules'},
              f'the policy has parts that are not looked at: {spec}')
        self.labels = spec['matchConstraints']['objectSelector']['matchLabels']
        self.conditions = spec['matchConditions']
        self.variables, (self.mutation,) = spec['variables'], spec['mutations']

    def is_for(self, pod):
        labels = pod['metadata'].get('labels', {})
        return all(labels.get(name) == value for name, value in self.labels.items()) and \
            all(evaluate(each['expression'], pod, {}) for each in self.conditions)

    def admit(self, pod):
        """The pod as it is after the policy."""
        if not self.is_for(pod):
            return copy.deepcopy(pod)
        variables = {each['name']: evaluate(each['expression'], pod, {}) for each in self.variables}
        return merged(pod, evaluate(self.mutation['applyConfiguration']['expression'], pod, variables))


# ---- What it makes of pods -------------------------------------------------------------------------------


def pod_of(*containers, labels=None, **spec):
    labels = LABEL if labels is None else labels
    return {'apiVersion': 'v1', 'kind': 'Pod', 'metadata': {'name': 'one', 'labels': labels},
            'spec': {'containers': list(containers), **spec}}


def container(name='main', **members):
    return {'name': name, 'image': 'registry.example/one:1', **members}


def variables_of(one):
    return {each['name']: each.get('value') for each in one.get('env', [])}


def check_admitted(policy, pod, preloads, what):
    """It has the library in each container, is a pod, and asked once more the policy changes nothing."""
    after = policy.admit(pod)
    why = refusal(after, f'1.{newest()}')
    check(not why, f'{what}: it is no pod any more: {why}')
    volumes = {each['name']: each.get('hostPath', {}).get('path') for each in after['spec'].get('volumes', [])}
    for one, preload in zip(after['spec']['containers'], preloads):
        mounts = {each['mountPath']: each for each in one.get('volumeMounts', [])}
        check(variables_of(one).get('LD_PRELOAD') == preload, f'{what}: LD_PRELOAD: {one}')
        check(variables_of(one).get('GPUSHIM_SHARE_DIR') in mounts, f'{what}: its folder is no mount: {one}')
        for path, read_only in (('/opt/gpushim', True), ('/run/gpushim', False)):
            mount = mounts.get(path, {})
            check(mount.get('readOnly', False) is read_only and volumes.get(mount.get('name')) == path,
                  f'{what}: {path}: {one}, {volumes}')
    check(policy.admit(after) == after, f'{what}: a second time something changes: {policy.admit(after)}, {after}')
    return after


def check_what_stays(policy):
    """Of what pods have themselves nothing goes."""
    own = container(env=[{'name': 'LD_PRELOAD', 'value': '/lib/libown.so'},
                         {'name': 'GPUSHIM_SHARE_DIR', 'value': '/own'},
                         {'name': 'OTHER', 'valueFrom': {'fieldRef': {'fieldPath': 'metadata.name'}}}],
                    volumeMounts=[{'name': 'data', 'mountPath': '/own'}])
    pod = pod_of(own, container('bare'), container('empty', env=[{'name': 'LD_PRELOAD', 'value': ''}]),
                 volumes=[{'name': 'data', 'emptyDir': {}}], hostIPC=False)
    after = check_admitted(policy, pod, [f'{LIBRARY}:/lib/libown.so', LIBRARY, LIBRARY], 'a pod of its own')
    now, first = after['spec']['containers'], after['spec']['containers'][0]
    check(variables_of(first)['GPUSHIM_SHARE_DIR'] == '/own' and own['env'][2] in first['env'] and
          own['volumeMounts'][0] in first['volumeMounts'] and pod['spec']['volumes'][0] in after['spec']['volumes'] and
          [each['name'] for each in now] == ['main', 'bare', 'empty'] and
          all(each['image'] == own['image'] for each in now), f'something went: {after}')


def check_who_is_left(policy):
    elsewhere = {'configMapKeyRef': {'name': 'settings', 'key': 'preload'}}
    for pod in (pod_of(container(), labels={}), pod_of(container(), labels={**LABEL, 'libgpushim.dev/library': 'off'}),
                pod_of(container(env=[{'name': 'LD_PRELOAD', 'valueFrom': elsewhere}])),
                pod_of(container(), container('two', env=[{'name': 'GPUSHIM_SHARE_DIR', 'valueFrom': elsewhere}]))):
        check(policy.admit(pod) == pod, f'it is to be left as it is: {pod}')


def check_policy():
    manifest, binding = manifests_of('kubernetes-policy.yaml')
    check(binding['spec']['policyName'] == manifest['metadata']['name'], 'the binding is of another policy')
    policy = Policy(manifest)
    check_what_stays(policy)
    check_who_is_left(policy)
    # Those that write it out themselves are as before, but for the names of their volumes.
    for pod in manifests_of('kubernetes-pods.yaml'):
        pod['metadata']['labels'] = {**pod['metadata'].get('labels', {}), **LABEL}
        after = check_admitted(policy, pod, [LIBRARY], 'kubernetes-pods.yaml')
        before, now = pod['spec']['containers'][0], after['spec']['containers'][0]
        check(now['env'] == before['env'] and len(now['volumeMounts']) == len(before['volumeMounts']), f'{now}')


def check_claim():
    """Both pods name the one claim and its folder, as one user, and nothing of the node's."""
    claim, *pods = manifests_of('kubernetes-claim.yaml')
    parameters, = [each['opaque']['parameters'] for each in claim['spec']['devices']['config']]
    check(parameters['kind'] == 'LocalIPCConfig' and parameters['enabled'] is True, f'{parameters}')
    users = {pod['spec']['securityContext']['runAsUser'] for pod in pods}
    check(len(pods) == 2 and len(users) == 1, f'{pods}')
    for pod in pods:
        spec, (main,) = pod['spec'], pod['spec']['containers']
        check(variables_of(main) == {'LD_PRELOAD': LIBRARY, 'GPUSHIM_SHARE_DIR': CLAIMED} and 'volumes' not in spec,
              f'{main}')
        check({each['resourceClaimName'] for each in spec['resourceClaims']} == {claim['metadata']['name']} and
              main['resources']['claims'] == [{'name': spec['resourceClaims'][0]['name']}], f'{spec}')


# ---- All together ----------------------------------------------------------------------------------------

OPERATORS = 'kubernetes-monitor.yaml' # whose kind is no one of Kubernetes' own
CLUSTERS = ('Namespace', 'MutatingAdmissionPolicy', 'MutatingAdmissionPolicyBinding')


def rendered():
    """What kustomize makes of the folder; None: there is none here."""
    words = ['kustomize', 'build'] if shutil.which('kustomize') else ['kubectl', 'kustomize']
    if not shutil.which(words[0]):
        return None
    ran = subprocess.run([*words, examples], capture_output=True, text=True, timeout=300, check=False)
    check(ran.returncode == 0, f'{words}: {ran.stderr}')
    return list(yaml.safe_load_all(ran.stdout))


def unfolded(value):
    """Kustomize folds lines otherwise than PyYAML, which means nothing in an expression."""
    if isinstance(value, dict):
        return {name: unfolded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [unfolded(each) for each in value]
    return ' '.join(value.split()) if isinstance(value, str) else value


def check_monitor(made):
    """The operator's monitor finds the service, which finds the exporter."""
    monitor, service = made['ServiceMonitor', 'gpushim-exporter'], made['Service', 'gpushim-exporter']
    exporter = made['DaemonSet', 'gpushim-exporter']['spec']['template']
    (endpoint,), (port,) = monitor['spec']['endpoints'], service['spec']['ports']
    main, = exporter['spec']['containers']
    check(monitor['spec']['selector']['matchLabels'].items() <= service['metadata']['labels'].items(), f'{service}')
    check(service['spec']['selector'].items() <= exporter['metadata']['labels'].items(), f'{exporter["metadata"]}')
    check(endpoint['port'] == port['name'] and port['targetPort'] == main['ports'][0]['name'] and
          main['args'][-1].endswith(f':{main["ports"][0]["containerPort"]}') and
          main['readinessProbe']['httpGet']['port'] == port['targetPort'], f'{endpoint}, {port}, {main}')
    check(endpoint['honorLabels'] is True and {'sourceLabels': ['container'], 'regex': '(.+)', 'targetLabel': 'pod'} in
          endpoint['metricRelabelings'], f'no label of the pod: {endpoint}')
    check(set(monitor['spec']) == {'selector', 'endpoints'} and set(endpoint) == {
        'port', 'interval', 'scrapeTimeout', 'honorLabels', 'relabelings', 'metricRelabelings'}, f'{monitor}')


def check_mounts(made):
    """Each mount is of a volume; what the policy gives pods is what the exporter's first container makes."""
    paths = set()
    for (kind, name), each in made.items():
        if kind != 'DaemonSet':
            continue
        spec = each['spec']['template']['spec']
        volumes = {volume['name']: volume['hostPath']['path'] for volume in spec['volumes']}
        for one in spec['initContainers'] + spec['containers']:
            check(all(mount['name'] in volumes for mount in one['volumeMounts']), f'{name}: {one}')
        paths |= set(volumes.values())
    check(paths == {'/opt/gpushim', '/run/gpushim'}, f'{paths}')
    spec = made['DaemonSet', 'gpushim-exporter']['spec']['template']['spec']
    first, = spec['initContainers']
    check(all(f'/node/{volume["name"]}' in first['command'][2] and volume['hostPath']['type'] == 'DirectoryOrCreate' and
              {'name': volume['name'], 'mountPath': f'/node/{volume["name"]}'} in first['volumeMounts']
              for volume in spec['volumes']), f'{first}')


def check_together():
    """False: it cannot be rendered here."""
    objects = rendered()
    with open(f'{examples}/kustomization.yaml', encoding='utf-8') as file:
        listed = yaml.safe_load(file)
    check(all(os.path.exists(f'{examples}/{name}') for name in listed['resources']), f'{listed}')
    if objects is None:
        return False
    sources = [manifest for name in listed['resources'] for manifest in manifests_of(name)]
    made = {(each['kind'], each['metadata']['name']): each for each in objects}
    if len(made) != len(sources) or len(objects) != len(sources):
        faults.append(f'it makes of {listed["resources"]}: {list(made)}')
        return True
    for manifest in sources:
        key = manifest['kind'], manifest['metadata']['name']
        check(unfolded(made[key].get('spec')) == unfolded(manifest.get('spec')), f'{key} is another: {made[key]}')
        check(made[key]['metadata'].get('namespace') == (None if key[0] in CLUSTERS else 'gpushim'),
              f'{key}: {made[key]}')
        check(key[0] == 'ServiceMonitor' or not refusal(made[key], f'1.{newest()}'), f'{key}: {made[key]}')
    check(made['Namespace', 'gpushim']['metadata']['labels']['pod-security.kubernetes.io/enforce'] == 'privileged',
          'level')
    check_monitor(made)
    check_mounts(made)
    return True


files = sorted(os.path.basename(path) for path in glob.glob(f'{examples}/kubernetes-*.yaml'))
check(len(files) == 8, f'the manifests are {files}')
for each in files:
    if each != OPERATORS:
        check_schemas(each)
check_policy()
check_claim()
together = check_together()
end_with_faults(None if together else 'there is no kustomize here, nor kubectl: what it makes of the manifests was not '
                                      'looked at')
