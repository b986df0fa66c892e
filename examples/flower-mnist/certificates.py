"""Certificates for a federation on loopback, and keys for its nodes.

Run it as ``python examples/flower-mnist/certificates.py 2`` for two nodes: it writes ``ca.crt``,
``server.crt``, ``server.key``, and for each node ``node-0.key`` and ``node-0.pub``, here.
"""

import argparse
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey


def write_certificates(folder: Path) -> None:
    """Write ``ca.crt``, ``server.crt`` and ``server.key`` for 127.0.0.1, valid for a day."""
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    name = _name("fedcohort example authority")
    ca = _certificate(name, name, authority.public_key(), authority, is_authority=True)
    signed = _certificate(_name("127.0.0.1"), name, server.public_key(), authority)
    for file, certificate in (("ca.crt", ca), ("server.crt", signed)):
        (folder / file).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(_private(server, serialization.PrivateFormat.PKCS8))


def write_node_key(folder: Path, number: int) -> tuple[Path, Path]:
    """Write a node's key pair; return the files of the public and the private key."""
    key = ec.generate_private_key(ec.SECP384R1())
    public, private = folder / f"node-{number}.pub", folder / f"node-{number}.key"
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )
    private.write_bytes(_private(key, serialization.PrivateFormat.OpenSSH))
    return public, private


def _private(key: Key, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    signer: Key,
    *,
    is_authority: bool = False,
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
            critical=False,
        )
    )
    if not is_authority:
        names = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA256())


def main() -> None:
    """Write the certificates, and the keys of as many nodes as are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("nodes", type=int, help="the number of nodes")
    options, folder = parser.parse_args(), Path.cwd()
    write_certificates(folder)
    for number in range(options.nodes):
        write_node_key(folder, number)


if __name__ == "__main__":
    main()
