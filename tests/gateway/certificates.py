"""Certificates for tests, each signed by an authority of its own."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import trustme


class Certificate(NamedTuple):
    """Paths of files: of a certificate, of its key, and of the authority that has signed it."""

    cert: str
    key: str
    authority: str


def certified(folder: Path, host: str = "localhost") -> Certificate:
    """A certificate for a host."""
    ours = Certificate(*(str(folder / f"{each}.pem") for each in Certificate._fields))
    authority = trustme.CA()
    made = authority.issue_cert(host)
    made.cert_chain_pems[0].write_to_path(ours.cert)
    made.private_key_pem.write_to_path(ours.key)
    authority.cert_pem.write_to_path(ours.authority)
    return ours
