"""Hydra's and OmegaConf's errors in this project's words: the key, what is wrong with it, and what to type."""

from __future__ import annotations

import re
from collections.abc import Callable

from omegaconf.errors import OmegaConfBaseException

from orchestrator.composing.overrides import groups
from orchestrator.config.settings import nearest_key
from orchestrator.errors import unknown

HELP = "type python -m orchestrator --help for all keys"
FRAME = re.compile(r"^In '[^']*': ")
TAIL = re.compile(r"\s*(?:full_key: \S*|object_type=\S*|reference_type=.*|See https?://\S*)")
MERGE = re.compile(r"Error merging override ([\w.]+)=(\{.*\})|Cannot merge DictConfig with ListConfig.*?full_key: ([\w.]+)")


def in_words(error: BaseException) -> str:
    """What went wrong when Hydra composed the configuration, or when a `${...}` in it was looked up."""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    text = FRAME.sub("", text.partition("Config search path:")[0].strip())
    if not text and error.__cause__ is not None:
        return in_words(error.__cause__)
    key = str(getattr(error, "full_key", None) or "")
    if ranged := MERGE.search(text):
        key, given = ranged[1] or ranged[3], ranged[2] or "{min: 1, max: 8}"
        if not ranged[3] or "." in key:
            return f"{key}: its value is a list, and a mapping cannot replace it; type '{key}=[{given}]', or [{given}] in YAML"
    for pattern, words in WORDS.items():
        if found := re.search(pattern, text):
            said = words(found)
            return f"{key}: {said}" if key and isinstance(error, OmegaConfBaseException) and "${" in said else said
    plain = TAIL.sub("", text) or "the configuration cannot be put together"
    return f"{plain}\n  {HELP}"


def _not_found(found: re.Match[str]) -> str:
    group, name = found[1].rpartition("/")[::2]
    own = f"; a file of your own is found with --config-dir DIR, as DIR/{group}/{name}.yaml" if group else ""
    return unknown(group or "defaults", name, (option for option in found[2].split() if option != "base")) + own


def _no_such_key(key: str, how: str = "") -> str:
    near = nearest_key(key)
    if near == key:
        return f"{key}: it has no value yet, and a new key begins with a +; type +{key}={'NAME' if key in groups() else '...'}"
    hint = f"did you mean '{how}{near}'?" if near else f"{HELP}."
    return f"{key}: there is no such key; {hint}"


def _in_braces(found: re.Match[str]) -> str:
    """For a column of `where` that was typed as a key of its own."""
    name, value = found[1], found[2].strip("'\"")
    return f"where.{name}={value}: where takes columns with their values in braces; type 'where={{{name}: {value}}}'"


def _referred(found: re.Match[str]) -> str:
    return f"${{{found[1]}}}: there is no key {found[1]!r} that it could stand for"


WORDS: dict[str, Callable[[re.Match[str]], str]] = {
    r"Could not find '(.*?)' Available options in '[\w/]+': (.*)": _not_found,
    r"Could not find '(.*?)'": lambda found: f"{found[1]}: there is no such file in the configuration",
    r"Could not load '(.*?)'": lambda found: f"{found[1]}: there is no such file in the configuration",
    r"Could not override 'where\.(\w+)'.*?use \+where\.\w+=(.*)": _in_braces,
    r"Could not override '([\w./@-]+)'": lambda found: _no_such_key(found[1]),
    r"Could not delete (?:from config\. )?'(.*?)'": lambda found: (
        f"~{found[1]}: {'none is chosen' if found[1] in groups() else 'there is no such key'}, so nothing can be left out; {HELP}"
    ),
    r"Could not append to config. An item is already at '(.*?)'": lambda found: (
        f"+{found[1]}: the config has this key already; type {found[1]}=... without the +"
    ),
    r"Could not append": lambda found: f"a + adds a key that is new, and this one is there already; leave the + out. {HELP}",
    r"Multiple values for ([\w/]+)": lambda found: f"{found[1].split('/')[0]}: given twice; type one of them",
    r"Error merging override ([\w.]+)=(.*?)(?: Cannot| Value|$)": lambda found: f"{found[1]}={found[2]}: it takes no such value",
    r"[Cc]annot find primary config '(.*?)'": lambda found: f"--config-name {found[1]}: there is no such file; leave it out",
    r"[Pp]rimary config (?:module|directory)": lambda found: "--config-path: there is no such folder; leave it out",
    r"config (?:directory|dir) '(.*?)' (?:not found|does not exist)": lambda found: f"--config-dir: there is no folder {found[1]}",
    r"path=(\S+) is not available": lambda found: f"{found[1]}: there is no such folder for configuration files",
    r"Incompatible key type": lambda found: "a key in it is no word; put quotes around it",
    r"Cannot merge DictConfig with ListConfig": lambda found: (
        "a file gives a mapping to a key that holds a list; write the mapping as an item of a list, s_qo: [{min: 1, max: 8}]"
    ),
    r"Config group override must be": lambda found: f"a group of the configuration takes the name of one of its files; {HELP}",
    r"hydra\.searchpath must be": lambda found: "hydra.searchpath: allowed: a list of folders",
    r"Recursive interpolation": lambda found: "a ${...} in it leads back to itself",
    r"Environment variable '(.*?)' not found": lambda found: (
        f"${{oc.env:{found[1]}}}: the environment has no {found[1]}; export it, or type ${{oc.env:{found[1]},VALUE}} with a default"
    ),
    r"Interpolation key '(.*?)' not found": _referred,
    r"Unsupported interpolation type (\S+)": lambda found: (
        f"${{{found[1]}:...}}: allowed: ${{KEY}} for another key, ${{oc.env:NAME}} for a variable of the environment"
    ),
    r"(?:mismatched input|no viable alternative|extraneous input|token recognition|missing BRACE)": lambda found: (
        "a ${...} in it cannot be read; type ${KEY} for another key, or \\${ for the signs themselves"
    ),
    r"raised while resolving interpolation": lambda found: "a ${...} in it cannot be looked up; type ${KEY} with a key that exists",
}
