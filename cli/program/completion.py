"""``foldmq completion``: scripts by which shells complete foldmq's commands, flags and choices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

if TYPE_CHECKING:
    from cli.program.help_pages import Program

Shell = Literal["bash", "zsh", "fish"]

_SCRIPTS: dict[Shell, str] = {
    "bash": """\
# foldmq completion bash > /etc/bash_completion.d/foldmq
_foldmq() {
    local IFS=$'\\n'
    COMPREPLY=($(foldmq complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1))
}
complete -o default -o nosort -F _foldmq foldmq
""",
    "zsh": """\
#compdef foldmq
# foldmq completion zsh > "${fpath[1]}/_foldmq"
_foldmq() {
    local word help
    local -a words_found
    while IFS=$'\\t' read -r word help; do
        words_found+=("${word//:/\\\\:}:$help")
    done < <(foldmq complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)
    if (( $#words_found )); then _describe -V foldmq words_found; else _files; fi
}
compdef _foldmq foldmq
""",
    "fish": """\
# foldmq completion fish > ~/.config/fish/completions/foldmq.fish
function __foldmq_complete
    set -l typed (commandline -opc) (commandline -ct)
    foldmq complete -- $typed[2..-1] 2>/dev/null
end
complete --command foldmq --keep-order --arguments '(__foldmq_complete)'
""",
}


def register_completion(app: Program) -> None:
    """Add the commands to the program."""
    app.command("completion")(_completion)
    app.command("complete", hidden=True)(_complete)


def _completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the completion script of a shell.

    For this shell only: source <(foldmq completion bash). The first lines of each script name the
    file to write it to for all shells.
    """
    typer.echo(_SCRIPTS[shell], nl=False)


def _complete(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORDS", help="Words after foldmq, up to the one to complete."),
    ] = None,
) -> None:
    """Print the completions of the last word.

    Each with its help, behind a tab.
    """
    root: Any = context.find_root()
    for completion in completions(root.command, root, words or [""]):
        typer.echo(f"{completion.word}\t{completion.help}")


class Completion(NamedTuple):
    """A possible completion, with one line of help."""

    word: str
    help: str


def completions(command: Any, context: Any, words: Sequence[str]) -> Iterator[Completion]:
    """Yield the completions of the last word, after those before it.

    ``command`` is the root of the program and ``context`` its context.
    """
    *before, begin = words
    waiting: Any = None
    arguments_before = 0
    for word in before:
        if waiting is not None:
            waiting = None
        elif word.startswith("-"):
            waiting = _flag_that_waits(command, word)
        elif hasattr(command, "get_command"):
            subcommand = command.get_command(context, word)
            if subcommand is None:
                return
            command = subcommand
        else:
            arguments_before += 1
    if waiting is not None:
        yield from (
            Completion(choice, "") for choice in _choices(waiting) if choice.startswith(begin)
        )
    elif begin.startswith("-"):
        yield from _flags(command, begin)
    elif hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            if name.startswith(begin):
                yield Completion(name, _short_help(command, context, name))
    else:
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        for argument in arguments[arguments_before : arguments_before + 1]:
            yield from (
                Completion(choice, "") for choice in _choices(argument) if choice.startswith(begin)
            )


def _flag_that_waits(command: Any, word: str) -> Any:
    """Return the flag whose value is the next word, or None."""
    for parameter in command.params:
        if word in parameter.opts:
            return None if getattr(parameter, "is_flag", False) else parameter
    return None


def _flags(command: Any, begin: str) -> Iterator[Completion]:
    for parameter in command.params:
        of_no_page = parameter.hidden and parameter.rich_help_panel is None
        if parameter.param_type_name == "argument" or of_no_page:
            continue
        for word in (*parameter.opts, *parameter.secondary_opts):
            if word.startswith(begin):
                yield Completion(word, _first_sentence(parameter.help))
    if "--help".startswith(begin):
        yield Completion("--help", "Show this message and exit.")


def _short_help(command: Any, context: Any, name: str) -> str:
    from cli.program.command_table import find_command

    entry = find_command(name)
    if context.command is command and entry is not None:
        return entry.help
    return _first_sentence(command.get_command(context, name).help)


def _first_sentence(text: str | None) -> str:
    line = " ".join((text or "").split())
    sentence, end, _ = line.partition(". ")
    return sentence + "." if end else line


def _choices(parameter: Any) -> list[str]:
    """Return the possible values of a parameter, if they are few."""
    kind = getattr(parameter, "type_descriptor", None) or parameter.type
    choices = getattr(kind, "choices", None)
    if choices:
        return [str(choice) for choice in choices]
    # Settings name their values in place of a metavar; words in capitals are metavars.
    named = (parameter.metavar or "").split("|")
    return [word for word in named if word and not word.isupper()] if len(named) > 1 else []
