"""Lists functions, argument lists and structs of the product that are larger than this project allows.

    python3 scripts/lib/shape.py
"""

import re
from pathlib import Path

from imports import crate_at, crates, roots
from rust_source import closing, comments_blanked

ROOT = Path(__file__).resolve().parent.parent.parent
# The most that is allowed. Lines are those of the body that are neither blank nor comments.
LIMITS = {"lines": 60, "arguments": 6, "fields": 15}
TRAIT_FOR_TYPE = re.compile(r"\bimpl\b[^{;]*\bfor\b[^{;]*\{")
FUNCTION = re.compile(r"\bfn\s+(\w+)\s*")
STRUCT = re.compile(r"\bstruct\s+(\w+)\s*")
# The doc comment of a larger struct says why: "Has 20 fields because each is a line of the report."
REASON = re.compile(r"\bfields because\b")
# A line that cannot be part of the documentation and attributes of the next item.
END_OF_OTHER = re.compile(r"^(?!\s*//).*[;{}]\s*$|^\s*$", re.MULTILINE)


def oversized(root):
    """Yields file, line, kind, name and size of everything that is too large."""
    files = {file: texts for crate in crates(root) for start in roots(crate) for file, texts in crate_at(start).files.items()}
    for file, (text, source) in files.items():
        for at, what, name, count in [*functions(source, comments_blanked(text)), *structs(source, text)]:
            if count > LIMITS[what]:
                yield str(file.relative_to(root)), source.count("\n", 0, at) + 1, what, name, count


def functions(source, with_texts):
    # The trait decides how many arguments its functions have.
    of_traits = [(found.start(), closing(source, found.end() - 1)) for found in TRAIT_FOR_TYPE.finditer(source)]
    for found in FUNCTION.finditer(source):
        start = after_generics(source, found.end())
        if source[start : start + 1] != "(":
            continue
        end = closing(source, start)
        if not any(first < found.start() < last for first, last in of_traits):
            yield found.start(), "arguments", found[1], len(parts(source[start + 1 : end]))
        body = after_signature(source, end + 1)
        if source[body : body + 1] == "{":
            inner = with_texts[body + 1 : closing(source, body)]
            yield found.start(), "lines", found[1], sum(bool(line.strip()) for line in inner.split("\n"))


def after_signature(source, at):
    """Finds the start of the body, or the semicolon of a function without one. The semicolon of `[u8; 2]` is neither."""
    while at < len(source) and source[at] not in "{;":
        at = closing(source, at) + 1 if source[at] in "([" else at + 1
    return at


def structs(source, text):
    for found in STRUCT.finditer(source):
        body = re.compile(r"[({;]").search(source, after_generics(source, found.end()))
        if body and body[0] != ";" and not has_reason(text[: found.start()]):
            yield found.start(), "fields", found[1], len(parts(source[body.end() : closing(source, body.start())]))


def has_reason(before):
    *_, documentation = END_OF_OTHER.split(before.rpartition("\n")[0])
    return bool(REASON.search(re.sub(r"\s*\n\s*///\s*", " ", documentation)))


def after_generics(source, at):
    if source[at : at + 1] != "<":
        return at
    depth = 0
    for found in re.compile(r"->|[<>]").finditer(source, at):
        depth += {"<": 1, ">": -1}.get(found[0], 0)
        if depth == 0:
            return found.end() + len(source[found.end() :]) - len(source[found.end() :].lstrip())
    return at


def parts(inner):
    """Splits at the commas outside of brackets."""
    found, depth, last = [], 0, 0
    for sign in re.compile(r"->|=>|[,(\[{<)\]}>]").finditer(inner):
        if sign[0] == "," and depth == 0:
            found.append(inner[last : sign.start()])
            last = sign.end()
        elif len(sign[0]) == 1:
            depth += (sign[0] in "([{<") - (sign[0] in ")]}>")
    return [part for part in [*found, inner[last:]] if part.strip()]


def main():
    for file, line, what, name, count in oversized(ROOT):
        print(f"{file}:{line}: {name} has {count} {what}, {LIMITS[what]} are allowed")


if __name__ == "__main__":
    main()
