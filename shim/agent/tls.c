/* TLS on the sockets of links (link.h): OpenSSL, this agent's certificate, and the one place where
 * bytes of other machines come in. */
#include "shim/agent/tls.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

/* ---- The socket, as TLS sees it ------------------------------------------------------------- */

/* So much in a turn and no more, whatever TLS does with it. */
static int read_some(BIO *bio, char *bytes, int size)
{
    struct link *link = BIO_get_data(bio);
    const size_t most = link->turn;
    ssize_t got;

    BIO_clear_retry_flags(bio);
    if (most == 0 || size <= 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    got = recv(link->source.fd, bytes, (size_t)size < most ? (size_t)size : most, 0);
    if (got > 0) {
        link->turn -= (size_t)got;
        link->heard += link_is_caller(link) ? (size_t)got : 0;
    } else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        BIO_set_retry_read(bio);
    }
    return (int)got;
}

static int write_some(BIO *bio, const char *bytes, int size)
{
    const struct link *link = BIO_get_data(bio);
    ssize_t sent = send(link->source.fd, bytes, (size_t)size, MSG_NOSIGNAL);

    BIO_clear_retry_flags(bio);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_write(bio);
    return (int)sent;
}

static long control(BIO *bio, int command, long number, void *arg)
{
    return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *make_socket(void)
{
    BIO_METHOD *socket = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "an agent's link");

    if (socket && BIO_meth_set_read(socket, read_some) && BIO_meth_set_write(socket, write_some) &&
        BIO_meth_set_ctrl(socket, control))
        return socket;
    BIO_meth_free(socket);
    return NULL;
}

bool tls_begin(struct link *link)
{
    BIO *bio = BIO_new(link->links->socket);

    link->ssl = bio ? SSL_new(link->links->tls) : NULL;
    if (!link->ssl) {
        BIO_free(bio);
        return false;
    }
    BIO_set_data(bio, link);
    BIO_set_init(bio, 1);
    SSL_set_bio(link->ssl, bio, bio);
    if (link->is_out)
        SSL_set_connect_state(link->ssl);
    else
        SSL_set_accept_state(link->ssl);
    return true;
}

/* ---- TLS ------------------------------------------------------------------------------------ */

/* Any certificate is taken here: whose it is, the fingerprint says, which the owner looks at. */
static int take_any(int good, X509_STORE_CTX *store)
{
    return 1;
}

bool tls_fingerprint(const X509 *certificate, unsigned char ret[LINK_FINGERPRINT])
{
    unsigned size = 0;

    return certificate && X509_digest(certificate, EVP_sha256(), ret, &size) == 1 &&
           size == LINK_FINGERPRINT;
}

static X509 *make_certificate(EVP_PKEY *key)
{
    X509 *certificate = X509_new();
    X509_NAME *name = certificate ? X509_get_subject_name(certificate) : NULL;
    bool good = name && X509_set_version(certificate, 2) &&
                ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1) &&
                X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                           (const unsigned char *)"gpushim-agent", -1, -1, 0) &&
                X509_set_issuer_name(certificate, name) &&
                /* Clocks of machines differ: no time decides here. */
                ASN1_TIME_set_string_X509(X509_getm_notBefore(certificate), "20000101000000Z") &&
                ASN1_TIME_set_string_X509(X509_getm_notAfter(certificate), "99991231235959Z") &&
                X509_set_pubkey(certificate, key) && X509_sign(certificate, key, NULL);

    if (!good) {
        X509_free(certificate);
        return NULL;
    }
    return certificate;
}

bool links_start(struct links *links, int epoll, char ret_reason[LINK_REASON])
{
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    X509 *certificate = key ? make_certificate(key) : NULL;
    SSL_CTX *tls = SSL_CTX_new(TLS_method());
    BIO_METHOD *socket = make_socket();
    bool good = certificate && tls && socket && tls_fingerprint(certificate, links->fingerprint) &&
                SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION) &&
                SSL_CTX_use_certificate(tls, certificate) == 1 &&
                SSL_CTX_use_PrivateKey(tls, key) == 1;

    X509_free(certificate);
    EVP_PKEY_free(key);
    if (!good) {
        snprintf(ret_reason, LINK_REASON, "OpenSSL makes no certificate: %s",
                 ERR_reason_error_string(ERR_get_error()));
        SSL_CTX_free(tls);
        BIO_meth_free(socket);
        return false;
    }
    SSL_CTX_set_verify(tls, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, take_any);
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                              SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(tls, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(tls, 0); /* each link is looked at anew */
    links->epoll = epoll;
    links->tls = tls;
    links->socket = socket;
    return true;
}
