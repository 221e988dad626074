"""What a test that calls an agent by itself needs: a certificate, and messages as shim/agent/talk.h has them."""
import ssl
import struct
import subprocess

VERSION, HELLO, LISTED = 4, 1, 3


def context_of(cluster):
    key, certificate = f'{cluster.folder}/key.pem', f'{cluster.folder}/cert.pem'
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ed25519', '-nodes', '-subj', '/CN=gpushim-agent', '-keyout',
                    key, '-out', certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(certificate, key)
    return context


def server_of(cluster):
    """As others call who made the certificate of context_of."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f'{cluster.folder}/cert.pem', f'{cluster.folder}/key.pem')
    return context


def message(kind, body=b''):
    return struct.pack('<HHI', VERSION, kind, 8 + len(body)) + body
