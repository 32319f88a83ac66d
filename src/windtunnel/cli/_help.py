"""A command whose `--help` shows the everyday options and whose `--help-all` shows all."""

from __future__ import annotations

import click


class ShortHelp(click.Command):
    """Its `--help` fits a screen; `everyday` names the options that are on it."""

    everyday: frozenset[str] = frozenset()
    exit_codes: str = ""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options of everyday, or all of them."""
        if ctx.meta.get(ALL):
            super().format_options(ctx, formatter)
            return
        shown = [option for option in self.get_params(ctx) if option.name in self.everyday]
        rows = [record for option in shown if (record := option.get_help_record(ctx)) is not None]
        with formatter.section("Everyday options"):
            formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What all options are set by, below all of them."""
        if ctx.meta.get(ALL):
            super().format_epilog(ctx, formatter)
        else:
            formatter.write_paragraph()
            formatter.write_text(f"{self.exit_codes} --help-all shows all options.".lstrip())


ALL = "windtunnel.help_all"


def help_all(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    """`--help-all`: print everything and end."""
    if value and not context.resilient_parsing:
        context.meta[ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


help_all_option = click.option(
    "--help-all", is_flag=True, is_eager=True, expose_value=False, callback=help_all, help="Show all options and exit."
)


def everyday(*names: str, exit_codes: str = "") -> type[ShortHelp]:
    """The class of a command whose `--help` shows these options, and what its exit codes mean."""
    return type("EverydayCommand", (ShortHelp,), {"everyday": frozenset(names), "exit_codes": exit_codes})
