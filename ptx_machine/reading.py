"""What a person reads of launches: findings by line of the source, then what each kernel moved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .execute import WORDS, Executed, Finding, Report

SECTOR = 32  # bytes


def summary(reports: Sequence[Report]) -> str:
    """The findings of all launches by line of the source, and one line for each kernel.

    Coalescing is the share of the bytes in the sectors of global memory that the lanes asked for; bank
    conflicts are wavefronts of shared memory per wavefront that would do. Both need `traffic=True`.
    """
    lines = []
    for place, findings in _by_source(reports).items():
        lines.append(place)
        for finding in findings.values():
            where = f", at {finding.place}" if finding.place else ""
            what = f"{WORDS[finding.kind]}{where}, by {finding.thread}"
            lines.append(f"    {finding.statement.text}\n        {what}")
            if finding.earlier:
                source = f" ({finding.earlier.source})" if finding.earlier.source else ""
                lines.append(f"        the other: {finding.earlier.text}{source}")
    kernels: dict[str, list[Report]] = {}
    for report in reports:
        kernels.setdefault(report.kernel, []).append(report)
    for name, launches in kernels.items():
        lines.append(_of_kernel(name, launches))
    total = sum(len(report.races) + len(report.violations) for report in reports)
    counts = [_count(len(reports), "launch"), _count(len(kernels), "kernel"), _count(total, "finding")]
    lines.append("{} of {}, {}".format(*counts))
    return "\n".join(lines)


def _by_source(reports: Iterable[Report]) -> dict[str, dict[tuple[str, str], Finding]]:
    """Findings by the line they come from; the same one of several launches or places stands once."""
    out: dict[str, dict[tuple[str, str], Finding]] = {}
    for report in reports:
        for finding in (*report.races, *report.violations):
            place = finding.statement.source or f"line {finding.statement.line} of the PTX text"
            key = (finding.kind, finding.statement.opcode)
            out.setdefault(f"{report.kernel}, {place}", {}).setdefault(key, finding)
    return out


def _of_kernel(name: str, launches: Sequence[Report]) -> str:
    done = [executed for report in launches for executed in report.instructions]
    warps = sum(executed.warps for executed in done)
    parts = [f"{name}: {_count(len(launches), 'launch')}", _count(warps, "warp instruction")]
    moved = sum((report.traffic() for report in launches[1:]), launches[0].traffic())
    parts += [f"{what} {bytes_:,} bytes" for what, bytes_ in sorted(moved.items())]
    asked, sectors = (sum(values) for values in zip((0, 0), *_sectors(done)))
    if sectors:
        parts.append(f"coalescing {asked / (SECTOR * sectors):.0%}")
    ideal = sum(executed.ideal_wavefronts for executed in done)
    if ideal:
        parts.append(f"bank conflicts {sum(executed.wavefronts for executed in done) / ideal:.2f}")
    return ", ".join(parts)


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 'es' if word.endswith('ch') else 's'}"


def _sectors(done: Iterable[Executed]) -> Iterable[tuple[int, int]]:
    return ((executed.moved, executed.sectors) for executed in done if executed.sectors)
