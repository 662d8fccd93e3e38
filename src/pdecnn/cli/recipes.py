"""`pdecnn recipes`: what can be trained."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pdecnn.cli import app


@app.command("recipes")
def command(
    name: Annotated[str | None, typer.Argument(help="A recipe, printed in full, or a folder of them: quick.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the recipes of the package, or print one with all its settings."""
    from pdecnn.training.recipe import RecipeError, list_recipes, load_recipe

    found = list_recipes()
    folder = {key: text for key, text in found.items() if name and key.startswith(name.rstrip("/") + "/")}
    if name is not None and not folder:
        try:
            recipe = load_recipe(name)
        except RecipeError as error:
            raise typer.BadParameter(str(error), param_hint="NAME") from error
        typer.echo(recipe.model_dump_json(indent=2) if as_json else recipe.to_yaml().rstrip())
        return
    found = folder or found
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table("recipe", "what it is", box=None)
    for key, text in found.items():
        table.add_row(key, text)
    Console().print(table)
