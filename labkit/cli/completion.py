"""Completion by the Tab key: the scripts for the shells, and the values of arguments.

A shell asks at each Tab, so nothing here imports what is slow.

The scripts are our own, and what they speak is Typer's. Typer's scripts (0.29, `--show-completion`) call the word that
was typed: in bash, `./lab` that is not set up completes to the lines of its help, and `~/kit/lab` or a folder with a
blank in its name to nothing; in zsh and fish they call `lab`, which is on no PATH. `--install-completion` writes to
`~/.bashrc`, or sets up completion as a whole in `~/.zshrc`.
"""

import shlex
import sys
import tomllib
from enum import StrEnum
from pathlib import Path

from labkit.system import paths

VARIABLE = "_LAB_COMPLETE"  # Typer's, for a program called lab


class Shell(StrEnum):
    """The shells whose completion is known."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


# Each asks labkit itself, by its full path. A shell takes what is said of `lab` for `./lab` too.
SCRIPTS = {
    Shell.BASH: """\
_lab_complete() {
  local IFS=$'\\n'
  COMPREPLY=($(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD VARIABLE=complete_bash PROGRAM 2>/dev/null))
}
complete -o default -F _lab_complete lab
""",
    Shell.ZSH: """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
_lab_complete() {
  eval "$(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" VARIABLE=complete_zsh PROGRAM 2>/dev/null)"
}
compdef _lab_complete lab
""",
    Shell.FISH: """\
function _lab_complete
  set --local --export VARIABLE complete_fish
  set --local --export _TYPER_COMPLETE_FISH_ACTION $argv[1]
  set --local --export _TYPER_COMPLETE_ARGS (commandline -cp)
  PROGRAM 2>/dev/null
end
complete --command lab --no-files --arguments "(_lab_complete get-args)" --condition "_lab_complete is-args"
""",
}


def script(shell: Shell) -> str:
    """Return what a shell has to read once."""
    program = Path(sys.executable).with_name("labkit")
    return SCRIPTS[shell].replace("VARIABLE", VARIABLE).replace("PROGRAM", shlex.quote(str(program)))


def labs(incomplete: str) -> list[tuple[str, str]]:
    """Return the numbers of the labs that begin so, each with its topic."""
    stems = sorted(path.stem for path in paths.SOLUTIONS.glob("[0-9][0-9]_*.py"))
    return [(stem[:2], stem[3:].replace("_", " ")) for stem in stems if stem.startswith(incomplete)]


def routes(incomplete: str) -> list[str]:
    """Return the names of the routes that begin so."""
    try:
        names = tomllib.loads((paths.SOLUTIONS / "routes.toml").read_text())
    except (OSError, ValueError):
        return []
    return [name for name in names if name.startswith(incomplete)]
