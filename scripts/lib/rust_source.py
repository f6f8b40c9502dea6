"""Reads Rust sources as far as the tests of the layout need: what is code, and which of it is the product's."""

import re

# Comments, characters and texts. Only the beginning of a block comment, because these nest and no pattern finds the end.
NOT_CODE = re.compile(
    r"//[^\n]*|/\*|'(?:\\(?:x..|u\{[^}]*\}|[^u\n])|[^'\\\n])'" r'|\b[bc]?r(#*)".*?"\1|\b[bc]?"(?:\\.|[^"\\])*"|"(?:\\.|[^"\\])*"',
    re.DOTALL,
)
ATTRIBUTE = re.compile(r"#!?\[")
# Only compiled for tests, or for tests and a feature that exists for tests: `any(test, ...)`. Not `not(test)`.
TEST_ATTRIBUTE = re.compile(r"#\[\s*(?:cfg\s*\((?!\s*not\b)[^\]]*\btest\b|(?:tokio\s*::\s*)?test\b)")
ITEM = re.compile(
    r"(?:pub\b\s*(?:\([^)]*\)\s*)?)?(?:(?:default|async|unsafe|const|extern)\b\s*)*"
    r"(?:fn|struct|enum|union|trait|impl|mod|use|const|static|type|macro_rules|extern)\b"
)
OPENING, CLOSING = "([{", ")]}"


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def code(text):
    """The text with comments, texts and characters blanked. Each remaining character keeps its place."""
    parts, at = [], 0
    while found := NOT_CODE.search(text, at):
        start, end = found.span()
        if found[0] == "/*":
            end = end_of_comment(text, start)
        parts += [text[at:start], blank(text[start:end])]
        at = end
    return "".join(parts) + text[at:]


def end_of_comment(text, at):
    depth = 0
    for found in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return found.end()
    return len(text)


def product(source):
    """What `code` returned, with tests blanked as well."""
    at = 0
    while found := TEST_ATTRIBUTE.search(source, at):
        end = end_of_item(source, found.start())
        source = source[: found.start()] + blank(source[found.start() : end]) + source[end:]
        at = found.end()
    return source


def end_of_item(source, at):
    """The end of the item, field, arm or statement that begins with its attributes at `at`."""
    at = after_attributes(source, at)
    # Commas do not end items, whose generics and parameters have some.
    ends = ";" if ITEM.match(source, at) else ";,"
    while at < len(source):
        letter = source[at]
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
    return at


def after_attributes(source, at):
    while True:
        at += len(source[at:]) - len(source[at:].lstrip())
        found = ATTRIBUTE.match(source, at)
        if not found:
            return at
        at = closing(source, found.end() - 1) + 1


def closing(source, at):
    """The place of the bracket that closes the one at `at`."""
    depth = 0
    for found in re.compile(r"[(\[{)\]}]").finditer(source, at):
        depth += 1 if found[0] in OPENING else -1
        if depth == 0:
            return found.start()
    return len(source)
