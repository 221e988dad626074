"""What tests ask of a cluster's etcd by themselves, by its JSON gateway."""
import base64
import json
import sys
import urllib.error
import urllib.request

from machines import await_that


def ask(cluster, path, **body):
    """Its first member: on a busy machine that comes up behind the others, and has no leader for a moment."""
    url = cluster.directory.split(',', maxsplit=1)[0]
    request = urllib.request.Request(f'{url}/v3/{path}', json.dumps(body).encode())
    answers = []

    def has_answered():
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                answers.append(json.load(answer))
        except urllib.error.URLError as error:
            if getattr(error, 'code', 503) < 500:
                raise
        return answers

    return answers[0] if await_that(has_answered, 'etcd answers') else sys.exit(f'failed: etcd does not answer {path}')


def exports_there(cluster):
    """How many there are, and the revision, which each write makes one more."""
    start, end = (base64.b64encode(key).decode() for key in (b'gpushim/exports/', b'gpushim/exports0'))
    answer = ask(cluster, 'kv/range', key=start, range_end=end, count_only=True)
    return int(answer.get('count', 0)), int(answer['header']['revision'])
