"""The report of one run."""

from apps.reports.curves import speed_figures, training_figures
from apps.reports.grids import failures_html, solving_html, votes_html
from apps.reports.html import interval, interval_bar, intro, pairs, percent, state, text, tile
from apps.reports.inside import inside_html
from apps.reports.page import Page
from apps.reports.puzzles import puzzle_figures
from apps.reports.reading import Result, Run
from apps.reports.tables import (
    Headline,
    evaluations_html,
    headline,
    notes_html,
    parameters_of,
    settings_html,
    warnings_html,
)
from evaluation.values import at, items, listed
from runtime.text import duration, many

_MAX_WITH_PUZZLES = 3


def page_of(run: Run, detail: float) -> Page:
    """Return the page of a run; lower `detail`, from 1 to 0, for fewer grids."""
    page = Page(f"{run.name}: report", _header(run))
    page.add("solving", "A puzzle, step by step", solving_html(run))
    page.add("curves", "Training", page.draw(training_figures(run)))
    hint = "The run's own warnings with their steps; the first two figures mark these steps."
    warned = warnings_html([run])
    page.add("diagnosis", "Diagnosis", intro(hint) + warned if warned else "")
    page.add("evaluations", "Evaluations", evaluations_html(run))
    page.add("puzzles", "Puzzle by puzzle", _puzzles(run, page))
    page.add("inside", "Between question and answer", inside_html(run, page))
    page.add("failures", "The hardest failures", failures_html(run, detail))
    page.add("votes", "ARC tasks and their votes", votes_html(run, detail))
    page.add("speed", "Speed and memory", page.draw(speed_figures(run)))
    page.add("settings", "Settings", settings_html(run) + _environment(run))
    page.add("notes", "What could not be read", notes_html([run]))
    return page


def _header(run: Run) -> str:
    status, best, settings = run.status, headline(run), run.settings
    data = settings.get("data_paths", "null")
    data = settings.get("data_path", "null") if data == "null" else data
    lead = f"{state(status.state)} {text(status.detail)} "
    if "arch.name" in settings and data != "null":
        lead += f"{text(settings['arch.name'])} trained on {text(data)}"
    tiles = [headline_tile(best)] if best else []
    tiles += [tile("model", text(settings.get("arch.name", "unknown"), 40), text(_model(run)))]
    tiles += [tile("training", *_training(run))]
    if run.curves:
        not_finite = any(curve.not_finite is not None for curve in run.curves.values())
        more = "values that are not finite" if not_finite else "recorded by the run"
        tiles.append(warnings_tile(len(run.warnings), more))
    project = settings.get("project_name", "")
    return header(
        f"{text(project)} · run report" if project else "Run report", run.name, lead, tiles
    )


def header(kicker: str, title: str, lead: str, tiles: list[str]) -> str:
    """Return the top of a page; all texts but the title are already escaped."""
    lead = f'<p class="lead">{lead}</p>' if lead else ""
    kicker = f'<p class="kicker">{kicker}</p>'
    return f'{kicker}<h1>{text(title)}</h1>{lead}<div class="tiles">{"".join(tiles)}</div>'


def headline_tile(best: Headline) -> str:
    """Return the first tile: the headline with its interval."""
    ends, bar = interval(best.estimate), interval_bar(best.estimate)
    more = (f"95 %: {ends} %<br>" if ends else "") + text(best.words)
    return tile(text(best.name), percent(best.estimate.value), more, extra=bar, first=True)


def warnings_tile(number: int, more: str) -> str:
    """Return the tile with the number of warnings."""
    return tile("diagnosis", many(number, "warning") if number else "no warning", more)


def _model(run: Run) -> str:
    parts = [parameters_of(run)]
    for key, form in (
        ("arch.hidden_size", "width {}"),
        ("arch.halt_max_steps", "{} ACT steps"),
        ("arch.forward_dtype", "{}"),
    ):
        value = run.settings.get(key, "")
        part = form.format(value) if value else ""
        parts.append(part.removesuffix("s") if value == "1" else part)
    return ", ".join(filter(None, parts))


def _training(run: Run) -> tuple[str, str]:
    status, batch = run.status, run.settings.get("global_batch_size")
    if status.step is None:
        return "–", "no step recorded yet"
    more = [f"of {status.total_steps:,}"] if status.steps_ahead else []
    more += [f"{text(batch)} puzzles each"] if batch else []
    more += [f"in {duration(status.seconds)}"] if status.seconds else []
    if status.seconds_left is not None:
        more.append(f"about {duration(status.seconds_left)} left")
    return f"{status.step:,} steps", ", ".join(more)


def _environment(run: Run) -> str:
    newest = run.status.newest
    found = items(newest.environment if newest else None)
    known = [(key, value) for key, value in found if value is not None]
    return pairs("machine and versions, at the newest checkpoint", known) if known else ""


def _puzzles(run: Run, page: Page) -> str:
    longer = [result for result in run.results if listed(at(result.content, "chains"))]
    with_records = [r for r in run.results if r.records is not None or r.answers is not None]
    parts = []
    for place, result in enumerate(with_records[:_MAX_WITH_PUZZLES]):
        own = [one for one in longer if one.step == result.step] if place == 0 else []
        html = page.draw(puzzle_figures(result, own))
        parts.append(f"{intro(f'From {text(result.name)}.')}{html}" if html else "")
    if not with_records and run.results:
        parts.append(page.draw(puzzle_figures(Result("", {}), longer[:1])))
        hint = "Evaluate with <code>save_records=true</code> to see more about single puzzles."
        parts.append(intro(hint))
    return "".join(parts)
