"""What tests ask of a cluster's etcd by themselves, by its JSON gateway."""
import base64
import json
import urllib.request


def ask(cluster, path, **body):
    url = cluster.directory.split(',', maxsplit=1)[0]
    request = urllib.request.Request(f'{url}/v3/{path}', json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def exports_there(cluster):
    """How many there are, and the revision, which each write makes one more."""
    start, end = (base64.b64encode(key).decode() for key in (b'gpushim/exports/', b'gpushim/exports0'))
    answer = ask(cluster, 'kv/range', key=start, range_end=end, count_only=True)
    return int(answer.get('count', 0)), int(answer['header']['revision'])
