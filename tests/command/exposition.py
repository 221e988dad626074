"""Prometheus' text format (version 0.0.4), read as strictly as it is written down: what a scraper might still
take is a fault here."""
import re

NAME = r'[a-zA-Z_:][a-zA-Z0-9_:]*'
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
NUMBER = re.compile(r'-?\d+(\.\d+)?([eE][+-]?\d+)?|[+-]Inf|NaN')
PLAIN = {'\\\\': '\\', '\\"': '"', '\\n': '\n'}


class Malformed(Exception):
    pass


def read_labels(text, line):
    labels, at = {}, 0
    while at < len(text):
        found = LABEL.match(text, at)
        if not found or found[1] in labels or found[1].startswith('__'):
            raise Malformed(f'labels: {line!r}')
        labels[found[1]] = re.sub(r'\\.', lambda escaped: PLAIN[escaped[0]], found[2])
        at = found.end()
        if at < len(text):
            if text[at] != ',' or at + 1 == len(text):
                raise Malformed(f'after a label: {line!r}')
            at += 1
    return labels


def read_sample(line, metric):
    found = re.fullmatch(rf'({NAME})(?:\{{(.*)\}})? (\S+)', line)
    if not found or not NUMBER.fullmatch(found[3]):
        raise Malformed(f'no sample: {line!r}')
    if found[1] != metric:
        raise Malformed(f'{found[1]} stands under {metric}')
    return read_labels(found[2] or '', line), float(found[3])


def read(text):
    """{metric: (type, {labels as sorted pairs: value})}"""
    metrics, metric, helped = {}, None, None
    if not text.endswith('\n'):
        raise Malformed('the last line has no end')
    for line in text[:-1].split('\n'):
        if line.startswith('# HELP '):
            found = re.fullmatch(rf'# HELP ({NAME}) (\S(?:[^\\]|\\[\\n])*)', line)
            if not found or found[1] in metrics:
                raise Malformed(f'a second help, or none: {line!r}')
            helped = found[1]
        elif line.startswith('# TYPE '):
            found = re.fullmatch(rf'# TYPE ({NAME}) (counter|gauge)', line)
            if not found or found[1] in metrics or found[1] != helped:
                raise Malformed(f'a type out of place: {line!r}')
            metric = found[1]
            if (found[2] == 'counter') != metric.endswith('_total'):
                raise Malformed(f'_total is the end of a counter, and of nothing else: {line!r}')
            metrics[metric] = (found[2], {})
        else:
            labels, value = read_sample(line, metric)
            key = tuple(sorted(labels.items()))
            if key in metrics[metric][1]:
                raise Malformed(f'twice: {line!r}')
            if helped != metric:
                raise Malformed(f'{helped} has no type')
            metrics[metric][1][key] = value
    return metrics
