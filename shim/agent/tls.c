/* What TLS is like on links (link.h): OpenSSL, and this agent's certificate. */
#include "shim/agent/link.h"

#include <stdio.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

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
    bool good = certificate && tls && tls_fingerprint(certificate, links->fingerprint) &&
                SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION) &&
                SSL_CTX_use_certificate(tls, certificate) == 1 &&
                SSL_CTX_use_PrivateKey(tls, key) == 1;

    X509_free(certificate);
    EVP_PKEY_free(key);
    if (!good) {
        snprintf(ret_reason, LINK_REASON, "OpenSSL makes no certificate: %s",
                 ERR_reason_error_string(ERR_get_error()));
        SSL_CTX_free(tls);
        return false;
    }
    SSL_CTX_set_verify(tls, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, take_any);
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                              SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(tls, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(tls, 0); /* each link is looked at anew */
    links->epoll = epoll;
    links->tls = tls;
    return true;
}
