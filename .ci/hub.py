"""The operator and its kernels as a repository of the Kernel Hub, into build/hub or the folder that is named.

`kernels.get_local_kernel(folder, backend="cpu")` loads it, and `kernels.get_kernel` once it is published. A
build holds `eagc_ops/` without `app/` and `selftest/`, and `kernels/`: plain Python that needs torch and, on
a GPU, Triton.
"""

import hashlib
import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BACKENDS = ("cpu", "cuda", "rocm")
NAME = "eagc-ops"
# The Hub counts versions in whole numbers: a new one whenever code that runs with the one before would fail.
VERSION = 1
LEFT_OUT = shutil.ignore_patterns("app", "selftest", "__pycache__")


def write(into: Path) -> None:
    """Write the repository; one that an earlier call wrote is replaced."""
    if into.exists():
        if not (into / "build" / f"torch-{BACKENDS[0]}" / "metadata.json").is_file():
            sys.exit(f"{into} exists and is no repository of this command: remove it, or name another folder")
        shutil.rmtree(into)
    for backend in BACKENDS:
        build = into / "build" / f"torch-{backend}"
        shutil.copytree(ROOT / "eagc_ops", build, ignore=LEFT_OUT)
        shutil.copytree(ROOT / "kernels", build / "kernels", ignore=LEFT_OUT)
        metadata = {
            "name": NAME,
            # The loader imports the build under this name, which is the namespace of its torch ops too.
            "id": f"_{NAME.replace('-', '_')}_{backend}_{_hash(build)}",
            "version": VERSION,
            "license": "MIT",
            "python-depends": [],  # besides torch and Triton, which the Hub takes for granted
            "backend": {"type": backend},
        }
        (build / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
    shutil.copy(Path(__file__).with_name("hub_card.md"), into / "README.md")
    shutil.copy(ROOT / "LICENSE", into)


def _hash(folder: Path) -> str:
    """Seven digits that no build with other files has."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:7]


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/hub"
    write(target)
    print(f'wrote {target}: kernels.get_local_kernel(Path("{target}"), backend="cpu") loads it')
