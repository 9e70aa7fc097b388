"""What is written in the repository: true of every machine, and true of the code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))

# Each pattern is put together from pieces, or this file would be its own first finding.
HOME = r"/(?:" + "|".join(["root", "home", "work", "Users"]) + r")/[A-Za-z0-9._-]+"
TEMPORARY = r"(?<![A-Za-z0-9_.])/" + r"tmp/[a-z0-9]+"
REGISTRY = r"(?:" + "|".join(["pypi", "pythonhosted", "npmjs", "download.pytorch"]) + r")\.(?:org|com)"
FORBIDDEN = {
    "a path of one machine": re.compile(HOME + "|" + TEMPORARY),
    "the host of a package registry": re.compile(REGISTRY),
    "an address of a wheel folder": re.compile(r"find-links\s*[= ]\s*/|/opt/" + r"(?:wheels|pypi)"),
}


def tracked_texts() -> dict[str, str]:
    """Tracked files by path, as they are now; binary ones left out."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=60)
    texts = {}
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file():
            try:
                texts[name] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
    return texts


def project(path: Path) -> dict:
    return tomllib.loads((path / "pyproject.toml").read_text())["project"]


def test_no_file_speaks_of_one_machine():
    findings = [
        f"{name}:{text.count(chr(10), 0, hit.start()) + 1}: {what}: {hit.group()}"
        for name, text in tracked_texts().items()
        for what, pattern in FORBIDDEN.items()
        for hit in pattern.finditer(text)
    ]
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a path of one machine", "cd /" + "home/ann/rdzv"),
        ("a path of one machine", "see /" + "tmp/x1"),
        ("the host of a package registry", "pip install -i https://" + "pypi" + ".org/simple"),
        ("an address of a wheel folder", "--find-links " + "/somewhere"),
    ],
)
def test_the_patterns_find_what_they_are_for(what: str, line: str):
    assert FORBIDDEN[what].search(line)


def test_links_inside_the_repository_lead_somewhere():
    broken = []
    for name, text in tracked_texts().items():
        if not name.endswith(".md"):
            continue
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            if "://" in target or target.startswith(("#", "mailto:")):
                continue
            if not (ROOT / name).parent.joinpath(target.partition("#")[0]).exists():
                broken.append(f"{name} -> {target}")
    assert not broken, "\n".join(broken)


def test_make_verbs_that_texts_speak_of_exist():
    verbs = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    unknown = [
        f"{name}: make {verb}"
        for name, text in tracked_texts().items()
        if name.endswith((".md", ".ci/run"))
        for verb in re.findall(r"(?:^|`)make ([a-z][a-z-]*)", text, flags=re.MULTILINE)
        if verb not in verbs
    ]
    assert not unknown, "\n".join(unknown)


def test_every_verb_of_make_is_made_by_one_rule():
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY:((?:.*\\\n)*.*)$", makefile, flags=re.MULTILINE)
    assert phony
    rules = re.findall(r"^([a-z-]+):(?!=)", makefile, flags=re.MULTILINE)
    assert sorted(rules) == sorted(set(phony[1].replace("\\", "").split()) - {"FORCE"})


def test_every_folder_of_tests_is_in_one_ring():
    rings = re.findall(r"^[A-Z]+ := (.*(?:tests|plugins)\b.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    listed = [folder for ring in rings for folder in ring.split() if folder != "plugins"]
    folders = {"/".join(name.split("/")[:2]) for name in tracked_texts() if re.match(r"tests/\w+/", name)}
    assert not folders - set(listed), "these are in no ring of the Makefile"
    assert len(listed) == len(set(listed)), "a folder is in one ring only"


def test_the_changelog_knows_the_version_and_what_is_coming():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    version = project(ROOT)["version"]
    headings = re.findall(r"^## (.+)$", changelog, flags=re.MULTILINE)
    assert headings, "CHANGELOG.md has no section"
    assert any(heading.startswith((version, "Unreleased")) for heading in headings)


def test_there_are_plugins():
    assert PLUGINS


@pytest.mark.parametrize("plugin", PLUGINS)
def test_core_and_plugins_are_in_step(plugin: str):
    """One minor number for all: each asks for the other's present series and not for the next one."""
    core, own = project(ROOT), project(ROOT / "plugins" / plugin)
    version = Version(core["version"])
    following = f"{version.major}.{version.minor + 1}.0"
    assert Version(own["version"]).release[:2] == version.release[:2]
    assert own["requires-python"] == core["requires-python"]
    assert own["license"] == core["license"]

    wanted_by_core = {
        extra: requirement
        for extra, lines in core["optional-dependencies"].items()
        for requirement in map(Requirement, lines)
        if requirement.name == own["name"]
    }
    assert "all" in wanted_by_core
    assert len(wanted_by_core) >= 2, "an extra of its own, and 'all'"
    wanted_by_plugin = [r for r in map(Requirement, own["dependencies"]) if r.name == core["name"]]
    assert len(wanted_by_plugin) == 1
    for requirement in [*wanted_by_core.values(), *wanted_by_plugin]:
        assert str(version) in requirement.specifier
        assert following not in requirement.specifier


@pytest.mark.parametrize("plugin", PLUGINS)
def test_each_plugin_has_its_readme_and_licence(plugin: str):
    own = project(ROOT / "plugins" / plugin)
    folder = ROOT / "plugins" / plugin
    assert (folder / own["readme"]).read_text().startswith("# ")
    assert all((folder / name).is_file() for name in own["license-files"])
