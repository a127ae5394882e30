#!/usr/bin/env python3
"""Sources of one folder compile as one: the preset quickstart joins them (CMAKE_UNITY_BUILD), and what one of them keeps to
itself is seen by those behind it.

unity.py SOURCE_ROOT

What a .cc file of the product keeps to itself stands in an unnamed namespace, is static or constant, or comes by `using` or
#define. No other .cc file of its folder may define the name in the same namespace; functions may that take other types of ours,
or another number of arguments. No header may declare it there or in a namespace around. Aliases that read the same are one.
"""
import collections
import itertools
import pathlib
import re
import sys

TOPS = ("client", "coordinator", "core", "transport", "worker")
# Comments, and what stands between quotes.
NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.MULTILINE)
DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
ATTRIBUTE = re.compile(r"\[\[.*?\]\]|\b(?:ABSL|PHALANX)_[A-Z_]+(?:\s*\([^()]*\))?|\b(?:alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)")
NAMESPACE = re.compile(r"(?:inline\s+)?namespace\s*([\w:]*)\s*$")
TYPE = re.compile(r"(?:struct|class|union|enum(?:\s+(?:class|struct))?)\s+(\w+)\s*(?![\s\w]*(?:<|::))(?=\W)")
ALIAS = re.compile(r"(?:using|namespace)\s+(\w+)\s*=|using\s+(?:typename\s+)?[\w:]*::(\w+)\s*$|using\s+namespace\s+([\w:]+)")
ARGUMENT = re.compile(r"\s*(?:const\s+)?(?:std::vector<)?(?:\w+::)*([A-Z]\w*)>?\s*[&*]*\s*\w*\s*$")
# scope: namespaces without the unnamed; own: whether its file keeps it to itself; detail: what an alias reads, what a function takes.
Name = collections.namedtuple("Name", "scope name own kind detail where path")


def blank(pattern, text):
    """`text` with literals for what begins like one and spaces for all else that matches; lines stay."""
    return pattern.sub(lambda match: ('""' if match.group()[0] in "\"'R" else " ") + "\n" * match.group().count("\n"), text)


def depths(text):
    """(letter, how many brackets are open behind it) of `text`."""
    depth = 0
    for before, letter in zip(" " + text, text):
        depth += (letter in "(<{[") - (letter in ")}]" or letter == ">" and before != "-")
        yield letter, depth


def split(text):
    """`text` between its commas, those between brackets aside."""
    commas = [index for index, (letter, depth) in enumerate(depths(text)) if letter == "," and depth == 0]
    return [text[begin + 1:end] for begin, end in zip([-1] + commas, commas + [len(text)]) if text[begin + 1:end].strip()]


def outside(text):
    """`text` with nothing between its round and angle brackets."""
    while (inner := re.sub(r"<[^<>()]*>", "\1", re.sub(r"\([^()]*\)", "\2", text))) != text:
        text = inner
    return text.replace("\1", "").replace("\2", "()")


def statements(code):
    """(namespaces, statement, line) of what stands in namespaces; what is in other braces is {}."""
    scopes, depth, text, begun, line = [], 0, "", 0, 1
    for token in re.findall(r"[{};\n]|[^{};\n]+", code):
        line += token == "\n"
        over = token == ";" and depth == 0
        if depth > 0:
            depth += (token == "{") - (token == "}")
            text += "{}" * (depth == 0)
            # A brace ends a function; behind that of a type or an initialiser stands a semicolon.
            over = depth == 0 and re.match(r"(?!struct\b|class\b|union\b|enum\b)[^=]*\(\)[^=]*$", outside(re.sub(r"operator\W+\(", "(", text)).lstrip())
        elif token == "{" and (opened := NAMESPACE.match(text.strip())):
            scopes.append(opened.group(1).split("::"))
            text = ""
        elif token == "{":
            depth = 1
        elif token == "}":
            scopes.pop()
            text = ""
        elif token != ";":
            begun = begun if text.strip() else line
            text += " " if token == "\n" else token
        if over:
            yield [*itertools.chain(*scopes)], text.strip(), begun
            text = ""


def arguments(text):
    """Of a function's `text` from its parenthesis: how few arguments it takes, and of each that it may take the type, if it is ours."""
    each = split(text[1:next(index for index, (_, depth) in enumerate(depths(text)) if depth == 0)])
    types = [ARGUMENT.match(one.split("=")[0]) for one in each]
    return sum("=" not in one and "..." not in one for one in each), [one and one.group(1) for one in types]


def declared(statement):
    """(name, kind, detail, whether no other file sees it) of what `statement` declares; members of classes are nobody's."""
    text = ATTRIBUTE.sub(" ", statement).strip()
    while text.startswith("template"):
        text = text[next(index for index, (letter, depth) in enumerate(depths(text)) if letter == ">" and depth == 0) + 1:].strip()
    if found := ALIAS.match(text):
        return [(next(filter(None, found.groups())), "alias", re.sub(r"\s", "", text), True)]
    if re.match(r"(?:extern|static_assert|friend|using)\b", text):
        return []
    if (found := TYPE.match(text + " ")) and "(" not in text.split("{")[0]:
        return [(found.group(1), "type", None, False)]
    head = re.split(r"[=({\[]", outside(text), maxsplit=1)[0].rstrip()
    found = re.search(r"[\s&*>]([A-Za-z_]\w*)$", head)
    if not found or "operator" in head:
        return []
    name = found.group(1)
    if outside(text)[len(head):].lstrip().startswith("("):
        return [(name, "function", arguments(text[re.search(rf"\b{name}\s*\(", text).end() - 1:]), "static" in head)]
    internal = re.search(r"\b(?:static|const|constexpr)\b", head) is not None and "inline" not in head
    more = [re.match(r"[\s&*]*(\w+)", part) for part in split(text[re.search(rf"\b{name}\b", text).start():])[1:]]
    return [(each, "variable", None, internal) for each in [name] + [one.group(1) for one in more if one]]


def names_of(path, root):
    """What `path` declares, and its macros."""
    text = blank(NO_CODE, path.read_text(encoding="utf-8"))
    names = [Name(tuple(filter(None, scopes)), name, internal or "" in scopes, kind, detail, f"{path.relative_to(root)}:{line}", path)
             for scopes, statement, line in statements(blank(DIRECTIVE, text)) for name, kind, detail, internal in declared(statement)]
    return names, set(DEFINE.findall(text)), text


def collide(one, other):
    if one.kind == other.kind == "alias":
        return one.detail != other.detail
    if one.kind == other.kind == "function":
        (few, types), (least, others) = one.detail, other.detail
        return len(types) >= least and len(others) >= few and not any(a and b and a != b for a, b in zip(types, others))
    return True


def errors_of(sources, headers):
    """Of one folder: `sources` by path as names_of says; `headers` by name."""
    for (path, (_, macros, _)), (other, (_, _, text)) in itertools.permutations(sources.items(), 2):
        for macro in sorted(macros):
            if re.search(rf"\b{macro}\b", text):
                yield f"{path}: #define {macro}, which {other.name} names, too"
    names = collections.defaultdict(list)
    for path in sources:
        for name in sources[path][0]:
            names[name.name].append(name)
    for places in names.values():
        for one, other in itertools.combinations(places, 2):
            if one.path != other.path and one.scope == other.scope and (one.own or other.own) and collide(one, other):
                yield f"{other.where}: {one.name} is in {one.where}, too"
        for one, other in itertools.product(places, headers[places[0].name]):
            if one.own and one.scope[:len(other.scope)] == other.scope and (one.kind != "alias" or collide(one, other)):
                yield f"{one.where}: {one.name} is also what {other.where} declares"


def main():
    root = pathlib.Path(sys.argv[1])
    headers, folders = collections.defaultdict(list), collections.defaultdict(dict)
    for path in sorted(path for top in TOPS for path in (root / top).rglob("*")):
        if path.suffix == ".h":
            for name in names_of(path, root)[0]:
                headers[name.name].append(name)
        elif path.name.endswith((".cc", ".cc.in")):
            folders[path.parent][path] = names_of(path, root)
    errors = [error for folder in folders.values() for error in errors_of(folder, headers)]
    print("\n".join(dict.fromkeys(errors)) or f"{sum(map(len, folders.values()))} sources in {len(folders)} folders")
    return 1 if errors or not folders else 0


if __name__ == "__main__":
    sys.exit(main())
