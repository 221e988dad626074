"""The expressions of examples/monitoring: of its alerts, and of its dashboard."""
import json
import pathlib
import re


def alerts(folder):
    """{alert: expression}. Each stands on one line."""
    text = (pathlib.Path(folder) / 'alerts.yml').read_text(encoding='utf-8')
    found = dict(re.findall(r'^ +- alert: (\w+)\n +expr: (\S.*)$', text, re.M))
    if len(found) != text.count('expr:'):
        raise SystemExit(f'of alerts.yml {len(found)} expressions can be read of {text.count("expr:")}')
    return found


def dashboard(folder):
    """Every expression of every panel and variable."""
    text = (pathlib.Path(folder) / 'dashboard.json').read_text(encoding='utf-8')
    found = []

    def walk(value):
        if isinstance(value, dict):
            found.extend(value[key] for key in ('expr', 'definition') if isinstance(value.get(key), str))
            value = list(value.values())
        if isinstance(value, list):
            for each in value:
                walk(each)

    walk(json.loads(text))
    return found


def expressions(folder):
    return {'alerts.yml': list(alerts(folder).values()), 'dashboard.json': dashboard(folder)}
