# SPDX-License-Identifier: Apache-2.0
"""Java's own list of certificates: the store's authority makes it, and sandboxes with rules that decrypt name it."""

import shutil
import subprocess

from harness import BUILD, DEADLINE, caller, skip  # noqa: F401


def test_java_reads_the_certificates_of_the_authority(tmp_path):
    if shutil.which("keytool") is None:
        skip("needs java: keytool reads its files")
    subprocess.run(
        [BUILD / "rollbox-egress-tls", "--make-ca", tmp_path / "ca"], check=True, timeout=DEADLINE
    )
    n = (tmp_path / "ca" / "bundle.pem").read_text().count("-----BEGIN")
    command = [
        "keytool",
        "-list",
        "-keystore",
        tmp_path / "ca" / "bundle.jks",
        "-storepass",
        "changeit",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0 and f"contains {n} entr" in done.stdout, done.stdout + done.stderr


def test_java_is_told_of_the_certificates_where_the_gateway_decrypts(caller):
    rules = caller.write(
        caller.directory(0o755) / "rules.json", '[{"host": "a.test", "tls": "terminate"}]'
    )
    command = ["sh", "-c", "echo $JAVA_TOOL_OPTIONS; od -An -tx1 -N4 /dev/rollbox-ca.jks"]
    told = caller.run("--allow-file", rules, "--", *command)
    assert "trustStore=/dev/rollbox-ca.jks" in told.stdout and "fe ed fe ed" in told.stdout, (
        told.raw
    )
    assert (
        caller.run("--allow", "a.test", "--", "sh", "-c", "echo ${JAVA_TOOL_OPTIONS-none}").stdout
        == "none\n"
    )
