"""Tells code from comments and strings in Rust sources, and product code from tests."""

import functools
import re

# Comments, characters and strings. Matches only the start of a block comment: block comments nest, so no pattern finds the end.
NOT_CODE = re.compile(
    r"//[^\n]*|/\*|'(?:\\(?:x..|u\{[^}]*\}|[^u\n])|[^'\\\n])'" r'|\b[bc]?r(#*)".*?"\1|\b[bc]?"(?:\\.|[^"\\])*"|"(?:\\.|[^"\\])*"',
    re.DOTALL,
)
ATTRIBUTE = re.compile(r"#!?\[")
# Code that is only compiled for tests: `cfg(test)`, and `cfg(any(test, ...))` with a feature that exists for tests. Not `cfg(not(test))`.
TEST_ATTRIBUTE = re.compile(r"#\[\s*(?:cfg\s*\((?!\s*not\b)[^\]]*\btest\b|(?:tokio\s*::\s*)?test\b)")
ITEM = re.compile(
    r"(?:pub\b\s*(?:\([^)]*\)\s*)?)?(?:(?:default|async|unsafe|const|extern)\b\s*)*"
    r"(?:fn|struct|enum|union|trait|impl|mod|use|const|static|type|macro_rules|extern)\b"
)
OPENING, CLOSING = "([{", ")]}"
SPACE = re.compile(r"\s*")
BRACKET = re.compile(r"[(\[{)\]}]")
BRACKET_OR_END = re.compile(r"[(\[{)\]};,]")


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def code(text):
    """Blanks comments, strings and characters. What remains keeps its place."""
    return without(text, keeps_texts=False)


def comments_blanked(text):
    return without(text, keeps_texts=True)


# Several tests read the same files.
@functools.cache
def without(text, keeps_texts):
    parts, at = [], 0
    while found := NOT_CODE.search(text, at):
        start, end = found.span()
        if found[0] == "/*":
            end = end_of_comment(text, start)
        is_kept = keeps_texts and not found[0].startswith("/")
        parts += [text[at:start], text[start:end] if is_kept else blank(text[start:end])]
        at = end
    return "".join(parts) + text[at:]


def end_of_comment(text, at):
    depth = 0
    for found in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return found.end()
    return len(text)


@functools.cache
def product(source):
    """Blanks tests too, in what `code` returned."""
    parts, at = [], 0
    while found := TEST_ATTRIBUTE.search(source, at):
        end = max(end_of_item(source, found.start()), found.end())
        parts += [source[at : found.start()], blank(source[found.start() : end])]
        at = end
    return "".join(parts) + source[at:]


def end_of_item(source, at):
    """Finds the end of the item, field, arm or statement whose attributes begin at `at`."""
    at = after_attributes(source, at)
    # A comma ends a field or an arm. Items have commas in their generics.
    ends = ";" if ITEM.match(source, at) else ";,"
    while found := BRACKET_OR_END.search(source, at):
        letter, at = found[0], found.start()
        if letter in OPENING:
            at = closing(source, at) + 1
            if letter == "{":
                return at
        elif letter in ends:
            return at + 1
        elif letter in CLOSING:
            return at
        else:
            at += 1
    return len(source)


def after_attributes(source, at):
    while True:
        at = SPACE.match(source, at).end()
        found = ATTRIBUTE.match(source, at)
        if not found:
            return at
        at = closing(source, found.end() - 1) + 1


def closing(source, at):
    """Finds the bracket that closes the one at `at`."""
    depth = 0
    for found in BRACKET.finditer(source, at):
        depth += 1 if found[0] in OPENING else -1
        if depth == 0:
            return found.start()
    return len(source)
