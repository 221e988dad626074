"""gpushim export and a real Prometheus: it reads what is served, promtool finds nothing wrong with the text and
with examples/monitoring, each alert fires where it should and only there, in the real one too those of refusals, of
what is freed and held, of a stopped process and of an exporter that is gone, and each expression of the dashboard
returns something.

    prometheus.py GPUSHIM SHIM LIBCUDA FOLDER_OF_EXAMPLES

Skipped where prometheus and promtool are not installed (Debian: prometheus).
"""
import atexit
import ctypes
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request

import monitoring
from holder import MIB, PATIENT_S, Holder, await_that, check, clean, end_with_faults, gpushim
from server import OWN_HOST, Server

EXAMPLES = pathlib.Path(sys.argv[4]).resolve()
WHO = 'instance="a:1",job="gpushim",pid="7",command="train"'
GPU = f'gpu="GPU-0",device="0",{WHO}'

# For each alert: series, where it fires and where it does not. A series is a value a minute.
FREED, UP, STOPPED = 'gpushim_freed_held_oldest_seconds', 'gpushim_up', 'gpushim_process_stopped'
CASES = {
    'GpushimFreedMemoryHeld': (({f'{FREED}{{{WHO}}}': '0+60x60'}, True), ({f'{FREED}{{{WHO}}}': '299x60'}, False)),
    'GpushimWaitsGivenUp': (({f'gpushim_waits_given_up_total{{{GPU}}}': '0x55 1x10'}, True),
                            ({f'gpushim_waits_given_up_total{{{GPU}}}': '5x60'}, False)),
    'GpushimAllocationRefused': (({f'gpushim_refused_allocations_total{{{GPU}}}': '0x55 2x10'}, True),
                                 ({f'gpushim_refused_allocations_total{{{GPU}}}': '2x60'}, False)),
    'GpushimExporterGone': (({'up{instance="a:1",job="gpushim"}': '1x55 0x10'}, True), ({}, True),
                            ({'up{instance="a:1",job="gpushim"}': '1x60'}, False)),
    'GpushimProcessStopped': (({f'{STOPPED}{{{WHO}}}': '1x60'}, True),
                              ({f'{STOPPED}{{{WHO}}}': '0x57 1x10'}, False), ({f'{STOPPED}{{{WHO}}}': '0x60'}, False)),
    'GpushimProcessSilent': (({f'{UP}{{{WHO}}}': '0x60', f'{STOPPED}{{{WHO}}}': '0x60'}, True),
                             ({f'{UP}{{{WHO}}}': '0x60', f'{STOPPED}{{{WHO}}}': '1x60'}, False),
                             ({f'{UP}{{{WHO}}}': '1x60'}, False)),
    'GpushimReservedMuchOverLive': tuple(
        ({f'gpushim_reserved_bytes{{{GPU}}}': f'{reserved << 30}x60',
          f'gpushim_memory_bytes{{{GPU},state="live"}}': f'{live << 30}x60',
          f'gpushim_memory_bytes{{{GPU},state="cached"}}': f'{reserved - live << 30}x60'}, fires)
        for reserved, live, fires in ((8, 2, True), (20, 16, False), (2, 0, False), (3, 0, True))),
    'GpushimSlowCalls': (({f'gpushim_slow_calls_total{{{GPU}}}': '0+1200x60'}, True),
                         ({f'gpushim_slow_calls_total{{{GPU}}}': '0+60x60'}, False)),
}


# What takes minutes in the alerts, in a test of seconds: how long it has to last, and how old what is freed and held
# is.
HURRY = ((r'\bfor: \d+m\n', 'for: 1s\n'),
         (r'\bgpushim_freed_held_oldest_seconds > 300\n', 'gpushim_freed_held_oldest_seconds > 1\n'))
# Memory that no GPU has is asked for.
REFUSED = """
address = ctypes.c_uint64()
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 45)) == 2
"""


def promtool(*arguments, text=None):
    run = subprocess.run(['promtool', *arguments], input=text, capture_output=True, text=True,
                         timeout=PATIENT_S, check=False)
    check(run.returncode == 0 and not (text and run.stderr),
          f'promtool {" ".join(arguments)}: {run.stdout}{run.stderr}')


def prove_alerts(place):
    """promtool's own tests of the alerts, after an hour of each."""
    alerts = monitoring.alerts(EXAMPLES)
    check(set(alerts) == set(CASES), f'each alert is tried: {set(alerts) ^ set(CASES)}')
    tests = [{'interval': '1m', 'input_series': [{'series': s, 'values': v} for s, v in series.items()],
              'promql_expr_test': [{'expr': f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                                    'eval_time': '60m',
                                    'exp_samples': [{'labels': '{}', 'value': 1}] if fires else []}]}
             for alert, cases in CASES.items() for series, fires in cases]
    path = os.path.join(place, 'tests.yml')
    with open(path, 'w', encoding='utf-8') as file:  # JSON is YAML
        json.dump({'rule_files': [str(EXAMPLES / 'alerts.yml')], 'evaluation_interval': '1m', 'tests': tests}, file)
    promtool('test', 'rules', path)


class Prometheus:
    def __init__(self, place, target):
        text = (EXAMPLES / 'prometheus.yml').read_text(encoding='utf-8')
        config, every = os.path.join(place, 'prometheus.yml'), 'scrape_interval: 1s\n  evaluation_interval: 1s'
        check("'127.0.0.1:9465'" in text and 'scrape_interval: 15s' in text, 'the example is as it was')
        text = text.replace("'127.0.0.1:9465'", f"'{target}'").replace('scrape_interval: 15s', every)
        pathlib.Path(config).write_text(text, encoding='utf-8')
        rules = (EXAMPLES / 'alerts.yml').read_text(encoding='utf-8')
        for minutes, seconds in HURRY:
            check(re.search(minutes, rules), f'the alerts have {minutes}')
            rules = re.sub(minutes, seconds, rules)
        pathlib.Path(place, 'alerts.yml').write_text(rules, encoding='utf-8')
        with socket.create_server((OWN_HOST, 0)) as free:
            self.address = f'{OWN_HOST}:{free.getsockname()[1]}'
        self.log = open(os.path.join(place, 'log'), 'w+', encoding='utf-8')
        self.process = subprocess.Popen(
            ['prometheus', f'--config.file={config}', f'--web.listen-address={self.address}',
             f'--storage.tsdb.path={os.path.join(place, "data")}'], env=clean(place), stdout=self.log, stderr=self.log)
        atexit.register(self.process.kill)  # a test that fails leaves none behind
        self.web = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path, **parameters):
        url = f'http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}'
        try:
            with self.web.open(url, timeout=PATIENT_S) as reply:
                return json.load(reply)['data']
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it starts
                return {}
            sys.exit(f'{parameters}: {error.read().decode()}')
        except urllib.error.URLError:
            if self.process.poll() is not None:
                self.log.seek(0)
                sys.exit(f'prometheus has ended: {self.log.read()}')
            return {}

    def query(self, expression):
        return self.get('query', query=expression).get('result', [])

    def end(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


def prove_scrape(prometheus, holder):
    if not await_that(lambda: prometheus.query('up{job="gpushim"} == 1'), 'Prometheus reads what is served'):
        sys.exit(f'{prometheus.get("targets")}')
    expression = f'gpushim_memory_bytes{{pid="{holder.pid}",state="live"}}'
    found = prometheus.query(expression)
    check(len(found) == 1 and found[0]['value'][1] == str(64 * MIB), f'it has the figures: {found}')


def prove_dashboard(prometheus):
    for expression in monitoring.dashboard(EXAMPLES):
        plain = re.sub(r'\$(instance|gpu|command)\b', '.*', expression).replace('$__rate_interval', '30s')
        variable = re.fullmatch(r'label_values\((\w+), (\w+)\)', plain)
        if variable:
            plain = f'{variable[1]}{{{variable[2]}!=""}}'
        check('$' not in plain, f'a variable is left: {plain}')
        await_that(lambda plain=plain: prometheus.query(plain), f'nothing comes of {plain}')


def prove_rules(prometheus, server, holder, other):
    """Each fires when its cause is there, and by the process that it is of."""
    def rules():
        groups = prometheus.get('rules').get('groups', [])
        return {rule['name']: rule for group in groups for rule in group['rules']}

    ours = str(holder.pid), str(other.pid), None  # the exporter tells of all the user's processes

    def firing(alert):
        pids = [it['labels'].get('pid') for it in rules()[alert]['alerts'] if it['state'] == 'firing']
        return [pid for pid in pids if pid in ours]

    def fires(alert, pid, cause=lambda: None):
        def does():
            cause()
            return firing(alert)
        check(not firing(alert), f'{alert} does not fire before: {firing(alert)}')
        await_that(does, f'{alert} fires')
        check(firing(alert) == [pid], f'{alert}: {firing(alert)}')

    await_that(lambda: rules() and all(rule['health'] == 'ok' for rule in rules().values()),
               f'Prometheus evaluates each alert: {rules()}')
    check(set(rules()) == set(CASES), f'it has them all: {set(rules())}')
    fires('GpushimAllocationRefused', str(holder.pid), lambda: holder.run(REFUSED))  # an increase is between two looks
    other.do('open ' + holder.do('share 0'))
    check(not firing('GpushimFreedMemoryHeld'), 'nothing is freed yet')
    holder.do('free 0')
    fires('GpushimFreedMemoryHeld', str(holder.pid))
    other.stop()
    fires('GpushimProcessStopped', str(other.pid))
    check(not firing('GpushimProcessSilent'), 'who is stopped is not taken for one that does not answer')
    server.end()
    fires('GpushimExporterGone', None)


def main():
    missing = [name for name in ('prometheus', 'promtool') if not shutil.which(name)]
    if missing:
        end_with_faults(f'{" and ".join(missing)}: not installed')
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: what is left ends with this test
    with tempfile.TemporaryDirectory(prefix='gpushim-prometheus-', ignore_cleanup_errors=True) as folder:
        promtool('check', 'config', str(EXAMPLES / 'prometheus.yml'))
        promtool('check', 'rules', str(EXAMPLES / 'alerts.yml'))
        prove_alerts(folder)
        holder, other = Holder(folder), Holder(folder)
        for each in (holder, other):
            each.do(f'alloc {64 * MIB}')
            each.do('share 0')
        await_that(lambda: f'pid="{holder.pid}"' in gpushim(folder, 'export', '--prometheus').stdout, 'it is there')
        promtool('check', 'metrics', text=gpushim(folder, 'export', '--prometheus').stdout)
        server = Server(folder)
        with tempfile.TemporaryDirectory(prefix='gpushim-prometheus-', ignore_cleanup_errors=True) as place:
            prometheus = Prometheus(place, f'127.0.0.1:{server.port}')
            prove_scrape(prometheus, holder)
            prove_dashboard(prometheus)
            prove_rules(prometheus, server, holder, other)
            prometheus.end()
        other.end()
        holder.end()
    end_with_faults()


main()
