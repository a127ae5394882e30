#!/usr/bin/env python3
"""Only the table of core/job/family.h tells families apart: no other source of the product names one.

families.py SOURCE_ROOT
"""
import pathlib
import re
import sys

TABLE = "core/job/family.h"


def main():
    root = pathlib.Path(sys.argv[1])
    table = (root / TABLE).read_text(encoding="utf-8")
    enumerators = set(re.search(r"enum class Family [^{]*\{([^}]*)\}", table).group(1).replace(",", " ").split())
    names = re.findall(r'\.name = "(\w+)"', table)
    words = re.compile("|".join([rf"\b{word}\b" for word in sorted(enumerators - {"kNone"})] +
                                [rf'"{name}"' for name in names] + [r"\bFamily::k(?!None\b)"]))
    errors = [f"{source.relative_to(root)}:{number}: names a family: {line.strip()}"
              for top in ("client", "coordinator", "core", "worker")
              for source in sorted((root / top).rglob("*"))
              if source.suffix in (".h", ".cc", ".cu") and source != root / TABLE
              for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), 1)
              if words.search(line)]
    print("\n".join(errors) or f"{len(names)} families, named in their table alone")
    return 1 if errors or not names else 0


if __name__ == "__main__":
    sys.exit(main())
