"""Progress bars that keep their numbers in a narrow terminal: the bar gives way, then the text, never the time."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text


def make_bar(console: Console, *fields: str) -> Progress:
    """A live bar: what is done, how many parts of how many, `fields` of the task, time so far and time left."""
    bar = BarColumn(bar_width=max(4, min(24, console.width - 60 - 20 * len(fields))))
    more = [TextColumn(f"{{task.fields[{name}]}}", table_column=_whole()) for name in fields]
    times = (
        TimeElapsedColumn(table_column=_whole()),
        TextColumn("left", table_column=_whole()),
        TimeRemainingColumn(table_column=_whole()),
    )
    columns = _Label(), bar, MofNCompleteColumn(table_column=_whole()), *more, *times
    return Progress(*columns, console=console, refresh_per_second=4)  # drawn seldom: latencies are taken meanwhile


def _whole() -> Column:
    return Column(no_wrap=True)


class _Label(ProgressColumn):
    """What is being done; in a column that may shrink, on one line."""

    def render(self, task: Task) -> Text:
        return Text(task.description, overflow="ellipsis", no_wrap=True)
