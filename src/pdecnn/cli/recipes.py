"""`pdecnn recipes`: what can be trained."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pdecnn.cli import app


@app.command("recipes")
def command(
    name: Annotated[str | None, typer.Argument(help="Print this recipe in full.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the recipes of the package, or print one with all its settings."""
    from pdecnn.training.recipe import RecipeError, list_recipes, load_recipe

    if name is not None:
        try:
            recipe = load_recipe(name)
        except RecipeError as error:
            raise typer.BadParameter(str(error), param_hint="NAME") from error
        typer.echo(recipe.model_dump_json(indent=2) if as_json else recipe.to_yaml().rstrip())
        return
    found = list_recipes()
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table("recipe", "what it is", box=None)
    for key, text in found.items():
        table.add_row(key, text)
    Console().print(table)
