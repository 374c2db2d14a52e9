# SPDX-License-Identifier: Apache-2.0
"""An HTTP server of rollbox with TLS, and certificates for it and its clients."""

import ssl

import pytest
from egress_tls import Authority
from harness import caller  # noqa: F401
from serving import Server


class Certificates:
    """An authority in a directory that the caller can read, and a server's certificate of it."""

    def __init__(self, who, name="ca"):
        self.who = who
        self.directory = who.directory() / name
        self.directory.mkdir()
        self.authority = Authority(self.directory)
        self.ca = self.authority.certificate
        self.leaf("localhost")
        self.share()

    def share(self):
        """The caller may read all of it."""
        self.directory.chmod(0o755)
        for file in self.directory.iterdir():
            file.chmod(0o644)

    def leaf(self, name):
        """The files of a certificate and its key."""
        pair = self.authority.leaf(name)
        self.share()
        return pair

    def expired(self, name):
        """The same, of a certificate of 2020."""
        certificate, key = self.authority.leaf(name)
        (self.directory / "index").touch()
        (self.directory / "ca.cnf").write_text(
            "[ca]\ndefault_ca=d\n[d]\ndatabase=index\nnew_certs_dir=.\nrand_serial=yes\n"
            "certificate=root.pem\nprivate_key=root.key\ndefault_md=sha256\npolicy=p\n"
            "[p]\ncommonName=supplied\n"
        )
        self.authority.run(
            *("ca", "-batch", "-config", "ca.cnf", "-in", f"{name}.csr", "-out", certificate),
            *("-startdate", "20200101000000Z", "-enddate", "20200102000000Z"),
            *("-extfile", f"{name}.cnf", "-notext"),
        )
        self.share()
        return certificate, key

    def context(self, client=None):
        """A client's context that trusts this authority."""
        context = ssl.create_default_context(cafile=self.ca)
        if client:
            context.load_cert_chain(*client)
        return context


@pytest.fixture
def certificates(caller):  # noqa: F811
    """Certificates for the server."""
    return Certificates(caller)


def serve(certificates, *arguments, client=None, pair=None):
    """A Server with TLS."""
    certificate, key = pair or certificates.leaf("localhost")
    return Server(
        certificates.who,
        *("--tls-cert", certificate, "--tls-key", key, *arguments),
        context=certificates.context(client),
    )
