"""Fenced blocks of a Markdown page, and what to do with those that hold commands. Commands of others' programs within a
line of text (`etcdctl alarm disarm`) are among what the page runs, or a comment says why they are not.

    ```console          commands behind "$ " and what they print: run, and compared
    ```sh               commands: run, their output is not looked at
    ```text, ```yaml    anything else; commands only where a comment says who runs them, or why nobody does

In comments of the page, which no reader sees:

    <!-- run: COMMAND -->       a command that goes before what follows
    <!-- not run: WHY -->       before a block of commands that no test runs
    <!-- needs: PROGRAM... -->  of the page: where one is not there, its commands are not run, and the test says so
    <!-- machines: NAME ADDRESS [SHARED], ... -->  of the page: it needs several, with these names and addresses, and
                                this folder in common; machines.sh makes them
    <!-- on: NAME, ... -->      on such a page: on which of them what follows is run, one after the other, until the
                                next such comment
    <!-- cluster: COUNT -->     of the page: kubectl talks to a cluster of so many nodes; tests/pods/cluster.py is one
    <!-- inline: BEGINNING, ...: WHY -->  of the page: who runs the commands within its text that begin so, or why nobody does
    <!-- test: NAME -->         behind a block that another test runs
    <!-- compare: RULES -->     before a console block, rules with commas between them:
        first words             of each line what stands before two blanks is compared, of a header all of it
        first N words           the same of N columns
        any order               lines may come in another order
        without REGEX           lines that match do not count, the last rule; of each command some must be left

A line "..." of a console block stands for any lines. Numbers, times and sizes are compared as such, not by
their value, and blanks as one.
"""

import dataclasses
import re

FENCE = re.compile(r"```(\w*)$")
COMMENT = re.compile(r"<!-- (run|not run|test|compare|needs|machines|cluster|on|inline): (.*) -->$")
# What a block that is neither `console` nor `sh` may not begin a line with, unless a comment says who runs it.
TYPED = re.compile(r"\s*(?:[$#] +)?(?:sudo +)?(?:\w+=\S* +)*(?:(?:scripts|tests)/\S+|(?:\S+/bin/)?phalanx(?:-[a-z-]+)?|systemctl|journalctl|kubectl|apt-get|apt|dpkg"
                   r"|cmake|ctest|ninja|cpack|podman|docker|buildah|openssl|curl|scp|ssh|rsync|sqlite3|etcdctl|promtool|python3|pip|git|export"
                   r"|sed|cat|cp|mv|rm|mkdir|install|chown|chmod|adduser|sysctl|iptables|nft)(?= +[\w./$\"'<~-]|$)")
# A command of another's program, with what it is to do, within a line of text.
INLINE = re.compile(r"`((?:sudo +)?(?:\w+=\S* +)*(?:kubectl|systemctl|journalctl|apt-get|apt|dpkg|podman|docker|buildah|openssl|curl|scp|ssh"
                    r"|rsync|sqlite3|etcdctl|promtool|sysctl|iptables|nft) +[^`]+)`")


@dataclasses.dataclass
class Block:
    kind: str       # the fence's language; "run" of a comment
    line: int       # of the page, from 1: the first one of the text
    text: list      # lines
    other: str = ""  # who runs it, or why nobody does
    compare: str = ""
    on: tuple = ()  # machines

    def typed(self):
        """Lines of a block of another kind that are commands all the same."""
        return [line for line in self.text if line.startswith("$ ") or TYPED.match(line)]

    def commands(self):
        """Of a console: [command, what it prints] in order."""
        found = []
        for line in self.text:
            if line.startswith("$ "):
                found.append([line[2:], []])
            elif found and not found[-1][1] and found[-1][0].endswith("\\"):
                found[-1][0] += "\n" + line
            else:
                found[-1][1].append(line)
        return found


def blocks_of(path):
    blocks, inside, notice, compare, on = [], None, "", "", ()
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        fence, comment = FENCE.match(line), COMMENT.match(line)
        if inside is not None and line == "```":
            blocks.append(inside)
            inside = None
        elif inside is not None:
            inside.text.append(line)
        elif fence:
            inside, notice, compare = Block(fence[1], number + 1, [], notice, compare, on), "", ""
        elif comment and comment[1] == "run":
            blocks.append(Block("run", number, [comment[2]], on=on))
        elif comment and comment[1] == "not run":
            notice = comment[2]
        elif comment and comment[1] == "compare":
            compare = comment[2]
        elif comment and comment[1] == "on":
            on = tuple(comment[2].split(", "))
        elif comment and comment[1] == "test" and blocks and blocks[-1].kind != "run":
            blocks[-1].other = comment[2]
    assert inside is None, f"{path}: a block has no end"
    return blocks


def indented_of(path):
    """Commands of blocks that have no fence, but four blanks before each line."""
    inside = False
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        inside = inside != line.startswith("```")
        if not inside and line.startswith("    ") and (line.startswith("    $ ") or TYPED.match(line)):
            yield number, f"a command that nobody runs ({line.strip()}): put it into a block with a fence"


def stray_fences(path):
    """Fences that blocks_of does not take for one, so that commands behind them would escape."""
    return [(number, "a fence is ``` and one word, at the beginning of a line")
            for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1)
            if re.match(r"\s*(?:```|~~~)", line) and not FENCE.match(line)]


def commands_of(lines):
    """Lines that end with a backslash go on, and those up to the END of a `<< END` belong to it."""
    commands, end = [], None
    for line in lines:
        if end or (commands and commands[-1].endswith("\\")):
            commands[-1] += "\n" + line
        else:
            commands.append(line)
        here = re.search(r"<< ?'?(\w+)'?", line)
        end = None if line == end else end or (here and here[1])
    return commands


def said_of(path, word):
    """What the page says of itself in a comment `word`; empty where it says nothing."""
    comments = map(COMMENT.match, path.read_text(encoding="utf-8").split("\n"))
    return next((comment[2] for comment in comments if comment and comment[1] == word), "")


def inline_of(path):
    """[(line, what is wrong)] of commands within text that the page does not run, and does not say why."""
    lines = path.read_text(encoding="utf-8").split("\n")
    run = [line for block in blocks_of(path) if block.kind in ("console", "sh", "run") and not block.other for line in block.text]
    reasons = [comment[2] for comment in map(COMMENT.match, lines) if comment and comment[1] == "inline"]
    told = {beginning: False for reason in reasons for beginning in reason.split(": ")[0].split(", ")}
    errors, inside = [], False
    for number, line in enumerate(lines, 1):
        inside = inside != line.startswith("```")
        for command in INLINE.findall("" if inside else line):
            beginnings = [one for one in told if command.startswith(one)]
            told.update(dict.fromkeys(beginnings, True))
            if not beginnings and not any(command in one for one in run):
                errors.append((number, f"a command that nobody runs ({command}): run it in a block, or say why in a comment `inline`"))
    errors += [(1, f"no command within the text begins so: {one}") for one, used in told.items() if not used]
    errors += [(1, f"say why nobody runs it: {one}") for one in reasons if ": " not in one]
    return errors


def account_of(path):
    """[(line, what is wrong)] of commands that nobody runs, and nobody says why; whether the page has some to run."""
    said, errors, blocks = said_of(path, "machines"), [], blocks_of(path)
    machines = {machine.split()[0] for machine in said.split(", ")} if said else set()
    for block in blocks:
        if not block.kind:
            errors.append((block.line, "say what the block is: console, sh, text, yaml, ..."))
        elif block.kind not in ("console", "sh", "run") and not block.other and block.typed():
            errors.append((block.line, f"commands that nobody runs ({block.typed()[0]}): make it a console or sh block, or say why in a comment"))
        elif block.kind in ("console", "sh", "run") and not block.other and (set(block.on) - machines or bool(block.on) != bool(machines)):
            errors.append((block.line, f"say on which of its machines it is run: {', '.join(sorted(machines))}"))
        elif block.kind == "console" and len(block.on) > 1:
            errors.append((block.line, "a console is that of one machine"))
        if block.kind == "console" and block.compare:
            errors += [(block.line, wrong) for wrong in idle_rules_of(block)]
    return errors + stray_fences(path) + [*indented_of(path)] + inline_of(path), any(block.kind in ("console", "sh") and not block.other for block in blocks)


def shape(line):
    line = re.sub(r"\b[0-9a-f]{12,}\b", "#", line)
    line = re.sub(r"[0-9]+(?:[.,:][0-9]+)*", "#", line)
    line = re.sub(r"# (?:B|KiB|MiB|GiB|TiB)\b", "# B", line)
    line = re.sub(r"#[kMG]?(?![\w])", "#", line)
    line = re.sub(r"(?:#(?:ms|us|d|h|m|s)\b|#[dhm](?=#))+", "#s", line)
    return re.sub(r"\s+", " ", line).strip()


def shapes(lines):
    """Of lines that follow each other and look alike the first one stands for all."""
    found = []
    for line in map(shape, lines):
        if not found or found[-1] != line:
            found.append(line)
    return found


RULES = re.compile(r"(?:first (?P<columns>[1-9] )?(?P<first>words)|(?P<any>any order))(?:, |$)|without (?P<without>.*)$")
HEADER = re.compile(r"[A-Z][A-Z /]*[A-Z](?:  +[A-Z][A-Z /]*[A-Z])+")


def rules_of(text):
    """How many columns are compared (0: all), whether lines may come in another order, which do not count (None: all do)."""
    columns, any_order, left_out, at = 0, False, None, 0
    while at < len(text):
        rule = RULES.match(text, at)
        if not rule:
            raise ValueError(f"no such rule: {text[at:]}")
        if rule["first"]:
            columns = int(rule["columns"] or 1)
        any_order = any_order or bool(rule["any"])
        left_out = re.compile(rule["without"]) if rule["without"] else left_out
        at = rule.end()
    return columns, any_order, left_out


def counted(lines, rules):
    columns, _, left_out = rules_of(rules)
    kept = [line for line in lines if line == "..." or not (left_out and left_out.search(line))]
    if not columns:
        return kept
    return [line if line == "..." or HEADER.fullmatch(line) else "  ".join(re.split("  +", line)[:columns]) for line in kept]


def idle_rules_of(block):
    """What is wrong with what the page says of how a console is compared."""
    try:
        rules_of(block.compare)
    except (ValueError, re.error) as wrong:
        return [f"{wrong}"]
    return [f"of what `{command}` prints nothing is compared ({block.compare}): leave less out" for command, told in block.commands()
            if any(told) and not any(line not in ("", "...") for line in counted(told, block.compare))]


def agree(told, printed, rules=""):
    any_order = rules_of(rules)[1]
    told, printed = counted(told, rules), counted(printed, rules)
    if any_order:
        known, there = set(shapes(told)), set(shapes(printed))
        return known - {"..."} <= there and ("..." in known or there <= known)
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in shapes(told))
    return re.fullmatch(pattern, "".join(line + "\n" for line in shapes(printed))) is not None


def cut(told, printed):
    """What is printed, with the lines left out that `told` leaves out."""
    if "..." not in told:
        return printed
    head = told.index("...")
    tail = len(told) - 1 - told[::-1].index("...")
    behind = printed[len(printed) - (len(told) - 1 - tail):] if tail < len(told) - 1 else []
    return printed[:head] + ["..."] + behind
