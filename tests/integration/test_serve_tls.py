# SPDX-License-Identifier: Apache-2.0
"""TLS of the HTTP server: its own certificate, those of clients, and new ones while it runs."""

import http.client
import shutil
import signal
import socket
import ssl

import pytest
import rollbox
from harness import DEADLINE, caller, until  # noqa: F401
from rollbox import Engine, Sandbox
from serving_tls import Certificates, certificates, serve  # noqa: F401


def test_requests_and_large_bodies_pass_through_tls(certificates):  # noqa: F811
    with serve(certificates) as server:
        assert server.call("POST", "/v1/runs", {"argv": ["echo", "hi"]})[1]["stdout"] == "hi\n"
        assert server.call("POST", "/v1/sandboxes", {"name": "box"})[0] == 201
        data = bytes(range(256)) * 40000
        assert server.call("PUT", "/v1/sandboxes/box/files/tmp/a", data)[0] == 204
        assert server.call("GET", "/v1/sandboxes/box/files/tmp/a") == (200, data)
        assert server.stop() == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of old versions
def test_only_tls_1_2_and_later_is_spoken(certificates):  # noqa: F811
    with serve(certificates) as server:
        with pytest.raises((http.client.BadStatusLine, ConnectionError)):
            plain = http.client.HTTPConnection("localhost", server.port, timeout=DEADLINE)
            plain.request("GET", "/healthz")
            plain.getresponse()
        old = certificates.context()
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection(("127.0.0.1", server.port), DEADLINE) as s:
            with pytest.raises((ssl.SSLError, OSError)):
                old.wrap_socket(s, server_hostname="localhost")
        assert server.call("GET", "/healthz")[0] == 200


def test_client_checks_the_server(certificates):  # noqa: F811
    other = Certificates(certificates.who, "other")
    with serve(certificates) as server:
        url = f"https://localhost:{server.port}"
        with Engine(url, token=server.token, ca=certificates.ca) as engine:
            assert Sandbox(engine=engine).run(["echo", "hi"], text=True).stdout == "hi\n"
        for ca in (None, other.ca):
            with pytest.raises(rollbox.EngineLost, match="certificate verify failed"):
                Engine(url, token=server.token, ca=ca)
        with pytest.raises(rollbox.EngineLost, match="certificate verify failed"):
            Engine(f"https://127.0.0.1:{server.port}", token=server.token, ca=certificates.ca)
        with pytest.raises(rollbox.InvalidArgument):
            Engine(url, token=server.token, ca=certificates.ca + ".none")


def test_expired_certificate_is_refused_by_the_client(certificates):  # noqa: F811
    with serve(certificates, pair=certificates.expired("localhost")) as server:
        with pytest.raises(ssl.SSLError, match="expired"):
            server.call("GET", "/healthz")


def is_refused(url, **arguments):
    """Whether the server knows no tenant of these."""
    try:
        Engine(url, **arguments).close()
    except rollbox.PathDenied:
        return True
    return False


def test_client_certificate_is_a_tenant(certificates):  # noqa: F811
    trainer, stranger = certificates.leaf("trainer.example"), certificates.leaf("stranger.example")
    other = Certificates(certificates.who, "other")
    with serve(certificates, "--tls-client-ca", certificates.ca) as server:
        url = f"https://localhost:{server.port}"
        row = server.new_token("two", arguments=("--certificate", "DNS:trainer.example"))
        with Engine(url, ca=certificates.ca, certificate=trainer) as engine:
            with Sandbox(engine=engine, name="mine"):
                assert [one["name"] for one in engine.sandboxes()] == ["mine"]
                # A token in the request decides, also over a certificate.
                with Engine(
                    url, token=server.token, ca=certificates.ca, certificate=trainer
                ) as one:
                    assert one.sandboxes() == []
            server.who.rollbox("token", "rm", "--tokens", server.tokens, row)
            until(lambda: is_refused(url, ca=certificates.ca, certificate=trainer))
        for refused in (None, stranger):
            with pytest.raises(rollbox.PathDenied, match="token"):
                Engine(url, ca=certificates.ca, certificate=refused)
        with pytest.raises(rollbox.EngineLost):
            Engine(
                url,
                token=server.token,
                ca=certificates.ca,
                certificate=other.leaf("trainer.example"),
            )
        expired = certificates.expired("old.example")
        with pytest.raises(rollbox.EngineLost):
            Engine(url, token=server.token, ca=certificates.ca, certificate=expired)
        assert server.call("GET", "/healthz")[0] == 200


def test_client_certificate_can_be_required(certificates):  # noqa: F811
    client = certificates.leaf("trainer.example")
    arguments = ("--tls-client-ca", certificates.ca, "--tls-client-required")
    with serve(certificates, *arguments) as server:
        with pytest.raises((ssl.SSLError, OSError)):
            server.call("GET", "/healthz")
        server.context = certificates.context(client)
        assert server.call("POST", "/v1/runs", {"argv": ["true"]})[0] == 200


def subject(server):
    """The names in the certificate that the server shows now."""
    with socket.create_connection(("127.0.0.1", server.port), DEADLINE) as s:
        context = server.context
        context.check_hostname = False
        with context.wrap_socket(s) as tls:
            return tls.getpeercert()["subjectAltName"]


def test_reload_takes_a_new_certificate_and_drops_no_connection(certificates):  # noqa: F811
    files = [certificates.directory / name for name in ("used.pem", "used.key")]

    def install(pair):
        for source, file in zip(pair, files):
            beside = file.with_suffix(".new")
            shutil.copy(source, beside)
            beside.chmod(0o644)
            beside.rename(file)

    def reload(*words):
        server.process.send_signal(signal.SIGHUP)
        stream = server.process.stderr if "stays" in words else server.process.stdout
        line = stream.readline().decode()
        assert all(word in line for word in words), line

    install(certificates.leaf("localhost"))
    with serve(certificates, pair=[str(file) for file in files]) as server:
        assert subject(server) == (("DNS", "localhost"),)
        kept = server.connect()
        kept.request("GET", "/healthz")
        assert kept.getresponse().read()
        install(certificates.leaf("new.example"))
        reload("read again")
        assert subject(server) == (("DNS", "new.example"),)
        kept.request("GET", "/healthz")
        assert kept.getresponse().status == 200
        files[0].write_text("broken")
        reload("stays", "used.pem")
        assert subject(server) == (("DNS", "new.example"),)
        kept.close()


def test_server_refuses_a_key_that_is_another_certificates(certificates):  # noqa: F811
    certificate, _ = certificates.leaf("localhost")
    _, key = certificates.leaf("other.example")
    for arguments, word in (
        (("--tls-cert", certificate, "--tls-key", key), "does not belong to"),
        (("--tls-cert", certificate), "--tls-key"),
        (("--tls-client-ca", certificate), "--tls-cert"),
    ):
        done = certificates.who.rollbox("serve", "--listen", "127.0.0.1:0", *arguments)
        assert done.returncode and word in done.stderr.decode(), done.stderr
