"""Generated small jobs for a shell: the prompt, the files, the tests, a solution, and commands that only look like
one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass

from grouprl.core.json_types import JsonObject

_WORDS = """
    amber anvil apple arrow badge barley basil beacon birch bison bottle branch bridge candle canyon cedar cherry
    clover cobalt comet copper coral cotton cradle crater dagger dune eagle ember fable falcon fern fiddle flint forest
    garlic garnet ginger glacier goblet grape hammer harbor hazel heron hollow indigo iris island ivory jacket jasper
    kettle ladder lagoon lantern lemon lilac linen lotus magnet maple marble meadow mirror nectar nickel oasis olive
    onyx orchid otter paddle pebble pepper pine plum poplar prairie quartz quiver raven ribbon river saddle saffron
    salmon shadow silver spruce stone sugar summit swan thistle timber topaz tulip turtle valley velvet violet walnut
    willow winter yarrow zebra
"""
WORDS = tuple(_WORDS.split())
COLOURS = ("red", "blue", "green", "black", "white", "pink", "gray", "brown")
OUT = ("answer.txt", "result.txt", "out.txt")
ENDINGS = ("txt", "log", "md", "csv", "dat")


@dataclass(frozen=True)
class Job:
    """A small job for a shell, with its files, tests, solution and wrong commands."""

    words: str
    """The job, as a sentence."""
    files: JsonObject
    tests: list[dict[str, object]]
    solution: list[str]
    """Commands that do the job."""
    slips: list[str]
    """Plausible commands that do not do the job."""

    def columns(self) -> JsonObject:
        """Return all fields except the words, as columns of a prompt."""
        return {name: value for name, value in asdict(self).items() if name != "words"}


Maker = Callable[[random.Random, int], Job]
"""A function that makes a job from a random generator and the number of lines of a file."""


def _lines(rng: random.Random, count: int) -> list[str]:
    return [f"{rng.choice(COLOURS)} {rng.choice(WORDS)} {rng.randint(1, 99)}" for _ in range(count)]


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _names(rng: random.Random, count: int, ending: str = "") -> list[str]:
    words = rng.sample(WORDS, count)
    return [f"{word}.{ending or rng.choice(ENDINGS)}" for word in words]


def _same(files: JsonObject) -> list[JsonObject]:
    return [{"file": path, "content": text} for path, text in files.items()]


def count(rng: random.Random, size: int) -> Job:
    """Make a job: count the lines of a file."""
    (name, other), out, total = _names(rng, 2), rng.choice(OUT), rng.randint(2, size + 1)
    files = {name: _text(_lines(rng, total)), other: _text(_lines(rng, total + 1))}
    return Job(
        f"Write the number of lines of {name} to {out}",
        files,
        [{"file": out, "content": str(total)}, *_same(files)],
        [f"wc -l < {name} > {out}"],
        [f"wc -l {name} > {out}", f"wc -w < {name} > {out}", f"wc -l < {other} > {out}", f"wc -l < {name}"],
    )


def match(rng: random.Random, size: int) -> Job:
    """Make a job: count the lines that contain a word."""
    (name,), out, word = _names(rng, 1), rng.choice(OUT), rng.choice(COLOURS)
    lines = [f"{word} {rng.choice(WORDS)}" for _ in range(rng.randint(1, size))]
    lines += [f"{rng.choice([c for c in COLOURS if c != word])} {rng.choice(WORDS)}" for _ in range(size)]
    rng.shuffle(lines)
    hits = sum(word in line for line in lines)
    files = {name: _text(lines)}
    return Job(
        f"Write how many lines of {name} contain {word} to {out}",
        files,
        [{"file": out, "content": str(hits)}, *_same(files)],
        [f"grep -c {word} {name} > {out}"],
        [f"grep {word} {name} > {out}", f"wc -l < {name} > {out}", f"grep -vc {word} {name} > {out}"],
    )


def select(rng: random.Random, size: int) -> Job:
    """Make a job: copy the lines that contain a word."""
    (name,), out, word = _names(rng, 1), rng.choice(OUT), rng.choice(COLOURS)
    lines = [f"{word} {rng.choice(WORDS)}", *_lines(rng, size), f"{word} {rng.choice(WORDS)}"]
    rng.shuffle(lines)
    lines.append(f"{rng.choice([c for c in COLOURS if c != word])} {rng.choice(WORDS)} 7")
    files = {name: _text(lines)}
    return Job(
        f"Write the lines of {name} that contain {word} to {out}",
        files,
        [{"file": out, "content": _text([line for line in lines if word in line])}, *_same(files)],
        [f"grep {word} {name} > {out}"],
        [f"grep -c {word} {name} > {out}", f"grep -v {word} {name} > {out}", f"cat {name} > {out}"],
    )


def permission(rng: random.Random, size: int) -> Job:
    """Make a job: set the permissions of a file."""
    name, other = _names(rng, 2, "sh")
    before, after = rng.sample(("600", "640", "644", "700", "750", "755", "400", "444", "500"), 2)
    text = f"echo {rng.choice(WORDS)}\n"
    files = {name: {"content": text, "mode": before}, other: {"content": text, "mode": before}}
    return Job(
        f"Set the permissions of {name} to {after}",
        files,
        [{"file": name, "mode": after, "content": text}, {"file": other, "mode": before, "content": text}],
        [f"chmod {after} {name}"],
        [f"chmod {after} {other}", f"chmod {before} {name}", f"chmod {name} {after}", f"chmod {after} *"],
    )


def column(rng: random.Random, size: int) -> Job:
    """Make a job: extract a column of a table."""
    (name,), out, wanted = _names(rng, 1, "csv"), rng.choice(OUT), rng.randint(1, 3)
    rows = [(rng.choice(WORDS), str(rng.randint(1, 99)), rng.choice(COLOURS)) for _ in range(size)]
    files = {name: _text([",".join(row) for row in rows])}
    other = wanted % 3 + 1
    return Job(
        f"Write column {wanted} of {name} to {out}",
        files,
        [{"file": out, "content": _text([row[wanted - 1] for row in rows])}, *_same(files)],
        [f"cut -d, -f{wanted} {name} > {out}"],
        [f"cut -d, -f{other} {name} > {out}", f"cut -f{wanted} {name} > {out}", f"cut -d, -f{wanted} {name}"],
    )


def replace(rng: random.Random, size: int) -> Job:
    """Make a job: replace a word in a file."""
    (name,), (old, new) = _names(rng, 1), rng.sample(COLOURS, 2)
    lines = [*_lines(rng, size), f"{old} {rng.choice(WORDS)} {old}"]
    rng.shuffle(lines)
    return Job(
        f"Replace every {old} by {new} in {name}",
        {name: _text(lines)},
        [{"file": name, "content": _text([line.replace(old, new) for line in lines])}],
        [f"sed -i s/{old}/{new}/g {name}"],
        [f"sed -i s/{old}/{new}/ {name}", f"sed s/{old}/{new}/g {name}", f"sed -i s/{new}/{old}/g {name}"],
    )


def find(rng: random.Random, size: int) -> Job:
    """Make a job: find a file and move it."""
    folders, box = rng.sample(WORDS, 3), rng.choice(("inbox", "found", "here"))
    places = [folders[0], f"{folders[0]}/{folders[1]}", folders[2], f"{folders[2]}/{folders[1]}"]
    names, home = _names(rng, 4), rng.choice(places)
    files = {f"{place}/{name}": f"{rng.choice(WORDS)}\n" for place, name in zip(places, names, strict=True)}
    path = next(path for path in files if path.startswith(f"{home}/"))
    name = path.rpartition("/")[2]
    after = {f"{box}/{name}" if each == path else each: text for each, text in files.items()}
    return Job(
        f"Find the file {name} and move it into the folder {box}",
        {**files, f"{box}/keep": "\n"},
        [{"names": ".", "are": [*after, f"{box}/keep"]}, *_same(after)],
        [f"mv $(find . -name {name}) {box}"],
        [f"mv {name} {box}", f"find . -name {name}", f"cp $(find . -name {name}) {box}", f"mv {path}"],
    )


def rename(rng: random.Random, size: int) -> Job:
    """Make a job: rename files by their extensions."""
    folder, (old, new) = rng.choice(WORDS), rng.sample(ENDINGS, 2)
    names = rng.sample(WORDS, max(3, min(size, 6)))
    files = {f"{folder}/{name}.{old}": f"{name}\n" for name in names[:-1]} | {f"{folder}/{names[-1]}.sh": "true\n"}
    after = {path.removesuffix(f".{old}") + f".{new}" if path.endswith(old) else path: t for path, t in files.items()}
    return Job(
        f"In the folder {folder} rename every .{old} file to .{new}",
        files,
        [{"names": ".", "are": list(after)}, *_same(after)],
        [f"for f in {folder}/*.{old}; do mv $f ${{f%.{old}}}.{new}; done"],
        [f"mv {folder}/*.{old} {folder}/*.{new}", f"mv *.{old} *.{new}", f"ls {folder}"],
    )


def order(rng: random.Random, size: int) -> Job:
    """Make a job: sort the lines of a file without repetitions."""
    (name,), out = _names(rng, 1), rng.choice(OUT)
    lines = rng.sample(WORDS, max(3, size))
    lines += [lines[0], lines[1]]
    rng.shuffle(lines)
    files = {name: _text(lines)}
    return Job(
        f"Write the lines of {name} sorted and without repetitions to {out}",
        files,
        [{"file": out, "content": _text(sorted(set(lines)))}, *_same(files)],
        [f"sort -u {name} > {out}"],
        [f"sort {name} > {out}", f"uniq {name} > {out}", f"sort -u {name}"],
    )


def total(rng: random.Random, size: int) -> Job:
    """Make a job: add up a column of a table."""
    (name,), out = _names(rng, 1, "csv"), rng.choice(OUT)
    rows = [(rng.choice(WORDS), rng.randint(1, 99), rng.randint(1, 99)) for _ in range(max(2, size))]
    wanted = rng.choice((2, 3))
    files = {name: _text([",".join(map(str, row)) for row in rows])}
    return Job(
        f"Add up column {wanted} of {name} and write the sum to {out}",
        files,
        [{"file": out, "content": str(sum(int(row[wanted - 1]) for row in rows))}, *_same(files)],
        [f"awk -F, '{{s+=${wanted}}} END {{print s}}' {name} > {out}"],
        [f"awk -F, '{{s+=${5 - wanted}}} END {{print s}}' {name} > {out}", f"cut -d, -f{wanted} {name} > {out}"],
    )


def script(rng: random.Random, size: int) -> Job:
    """Make a job: write a script that computes."""
    name, number = f"{rng.choice(WORDS)}.sh", rng.randint(2, 99)
    sign, words = rng.choice((("+", f"plus {number}"), ("*", f"times {number}"), ("-", f"minus {number}")))
    inputs = rng.sample(range(100, 999), 3)
    results = [{"+": given + number, "*": given * number, "-": given - number}[sign] for given in inputs]
    other = "+" if sign != "+" else "-"
    return Job(
        f"Write {name}, a bash script that reads a number and prints it {words}",
        {},
        [
            {"run": ["bash", name], "stdin": f"{given}\n", "stdout": str(result)}
            for given, result in zip(inputs, results, strict=True)
        ],
        [f"echo 'read n; echo $((n{sign}{number}))' > {name}"],
        [f"echo 'read n; echo $((n{other}{number}))' > {name}", f"touch {name}", f"echo $((5{sign}{number})) > {name}"],
    )


KINDS: dict[str, Maker] = {
    "count": count,
    "match": match,
    "select": select,
    "permission": permission,
    "column": column,
    "replace": replace,
    "order": order,
    "find": find,
    "rename": rename,
    "total": total,
    "script": script,
}
"""Makers of jobs by kind, easiest first."""
WHOLE_FOLDER = ("find", "rename")
"""Kinds whose tests look at every file in the folder: no other job can be done beside them."""


def touched(job: Job) -> set[str]:
    """Return the files that a job begins with or writes."""
    tested = {str(test["file"]) for test in job.tests if "file" in test}
    commands = (test["run"] for test in job.tests if "run" in test)
    return tested | {str(command[-1]) for command in commands if isinstance(command, list)} | set(job.files)


def joined(jobs: list[Job]) -> Job:
    """Return one job of several that touch different files: all are to be done, in turn."""
    first, *rest = (job.words for job in jobs)
    return Job(
        ", then ".join([first, *(words[0].lower() + words[1:] for words in rest)]),
        {path: text for job in jobs for path, text in job.files.items()},
        [test for job in jobs for test in job.tests],
        [command for job in jobs for command in job.solution],
        [command for job in jobs for command in job.slips],
    )
