#!/usr/bin/env python3
"""tests/lint/unity.py finds names that are planted in two sources of a folder, and nothing where the sources compile as one."""
import pathlib
import subprocess
import sys
import tempfile

LINT = pathlib.Path(__file__).with_name("unity.py")
COLLIDING = {  # name: what the first source has, what the second has
    "Twice": ("namespace { int Twice(int a) { return a; } }", "namespace {\nint Twice(int64_t other) {\n  return 1;\n}\n}"),
    "Copied": ("namespace { void Copied(const Job& job) {} }", "namespace { void Copied(const job::Job& one, int count = 1) {} }"),
    "kTurns": ("namespace { constexpr int kLooks = 1, kTurns = 2; }", "namespace { constexpr double kTurns[] = {1, 2}, kOthers = 3; }"),
    "kShare": ("constexpr int64_t kShare = 1;", "static const char* const kShare = \"a;{\";"),
    "Reader": ("namespace { class Reader { int at_ = 0; }; }", "namespace { template <typename T> int Reader(T& text) { return 1; } }"),
    "Tree": ("using job::Tree;", "using Tree = std::map<int, int>;"),
    "kNone": ("namespace { enum class Kind : char { kA }; constexpr Kind kNone{}; }", "int kNone = 0;"),
    "SIDES": ("#define SIDES 2", "int sides = SIDES;"),
    "Annotate": ("namespace { void Annotate(int status, Text text) {} }", "int unrelated = 0;"),
    "Matches": ("namespace { struct Matches {}; }", "int unrelated = 0;"),
}
FINE = {
    "overloads": ("namespace { void Put(const Job& job) {} }", "namespace { void Put(const std::vector<Node>& nodes) {} void Put(const Job& a, int b) {} }"),
    "aliases": ("using job::Tree;", "using  job::Tree;"),
    "members": ("namespace { struct A { static int Size(int) { return 1; } int size = 0; }; }", "namespace { int Size(int a) { return a; } }"),
    "classes": ("int Job::Size() const { return 1; }", "namespace { int Size() { return 1; } }\nstruct Job::Inner { int x; };"),
    "texts": ("// int Told() {}\nconst char kA[] = \"int Told() {\";", "namespace { int Told() { return R\"(}{)\"[0]; } int After() { return '}'; } }"),
    "elsewhere": ("namespace other { namespace { int Size() { return 1; } } }", "namespace { int Size() { return 1; } }"),
    "macros": ("#define SIDES 2", "int unrelated = 0;"),
}
HEADERS = {"core/base/status.h": "namespace phalanx { void Annotate(int status); }",
           "core/plan/first.h": "namespace phalanx::plan { bool Matches(int a); struct Own { int Size(int); }; }"}


def told_of(first, second):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        sources = {f"core/plan/{name}.cc": f"#include \"{name}.h\"\nnamespace phalanx::plan {{\n{text}\n}}  // namespace\n"
                   for name, text in (("first", first), ("second", second))}
        for path, text in (HEADERS | sources).items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        run = subprocess.run([sys.executable, LINT, root], capture_output=True, text=True, check=False)
        return run.returncode, run.stdout + run.stderr


def main():
    errors = []
    for name, sources in COLLIDING.items():
        code, text = told_of(*sources)
        if code != 1 or f" {name}" not in text or text.count("\n") != 1:
            errors.append(f"{name} collides, and the lint says ({code}): {text}")
    for what, sources in FINE.items():
        code, text = told_of(*sources)
        if code != 0:
            errors.append(f"{what}: they compile as one, and the lint says ({code}): {text}")
    print("\n".join(errors) or f"{len(COLLIDING)} planted, {len(FINE)} fine")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
