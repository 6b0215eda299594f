"""Verbs that judge: verify, doctor."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from kvtools.options import FINE, PROBLEMS, directory_argument, exit_code, output_options, paths_argument, shape_option
from kvtools.output import print_json, print_jsonl
from kvtools.quantities import Share, Size

existing_path = click.Path(path_type=Path, exists=True)


@click.command()
@paths_argument
@output_options
@shape_option
@click.option("--quick", "level", flag_value="quick", help="Structure, name, token ids, logits (the default).")
@click.option(
    "--full", "level", flag_value="full", help="Also every number of the state, and the seal if there is one."
)
@click.option("--deep", "level", flag_value="deep", help="Also: the tokens render to the text. Needs --tokenizer.")
@click.option("--tokenizer", type=existing_path, metavar="FILE", help="For --deep: a GGUF or tokenizer.json.")
@click.option("--prove", is_flag=True, help="Also compute the state anew with --model; slow.")
@click.option("--model", type=existing_path, metavar="M", help="Whose files these should be: a GGUF or a folder.")
@click.option("--subset", type=Share(), default=1.0, metavar="10%", help="Take this share of the files, by chance.")
@click.option(
    "--quarantine", type=click.Path(path_type=Path), metavar="DIR", help="Move damaged and truncated files there."
)
@click.option(
    "--seal", is_flag=True, help="Verify --full, then record a checksum of what never changes in the sidecar."
)
def verify(paths: tuple[Path, ...], style: str | None, level: str | None, **options: Any) -> None:
    """Check whether files are what they say they are. Exit code 1 if one is damaged, truncated or foreign."""
    from kvtools import findings, judging

    wishes = judging.Wishes(judging.Level(level or "quick"), **options)
    reports = []
    for report in judging.judge(paths, wishes):
        reports.append(report)
        if style == "jsonl":
            print_jsonl(findings.report_fields(report))
        elif style is None:
            findings.print_report(report)
    if style == "json":
        files = [findings.report_fields(report) for report in reports]
        print_json({"files": files, "totals": findings.totals(reports)})
    elif style is None:
        click.echo(findings.summary(reports), err=not sys.stdout.isatty())
    raise SystemExit(exit_code([report.verdict for report in reports]))


@click.command()
@directory_argument
@output_options
@click.option(
    "--budget", type=Size(), default="4G", metavar="4G", show_default=True, help="The server's --kv-disk-space-mb."
)
def doctor(directory: Path, style: str | None, budget: int) -> None:
    """Look for what is wrong with a directory, and say what mends it. Exit code 1 if there is a problem."""
    from kvtools import doctoring, examinations, surveying

    diagnosis = doctoring.diagnose(surveying.survey(directory, time.time()), budget, examinations.ALL)
    if style == "json":
        print_json(doctoring.diagnosis_fields(diagnosis))
    elif style == "jsonl":
        for ailment in doctoring.diagnosis_fields(diagnosis)["ailments"]:
            print_jsonl(ailment)
    else:
        doctoring.print_diagnosis(diagnosis)
    raise SystemExit(PROBLEMS if diagnosis.has_problems else FINE)
