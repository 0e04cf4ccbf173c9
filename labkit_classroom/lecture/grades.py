"""Points for credit, as CSV with the columns of nbgrader's own export, which learning platforms can map.

The columns are those of `CsvExportPlugin` in nbgrader 0.9.6 (nbgrader/plugins/export.py): a row for each assignment and
student. An assignment is a lab, and each exercise is one point.
"""

import csv
import io
from datetime import datetime

from labkit.exercises import sources
from labkit_classroom.lecture.collected import Collected

COLUMNS = (
    "assignment",
    "duedate",
    "timestamp",
    "student_id",
    "last_name",
    "first_name",
    "email",
    "raw_score",
    "late_submission_penalty",
    "score",
    "max_score",
)
FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")  # by which a spreadsheet knows one
WHEN = "%Y-%m-%d %H:%M"  # as a lab writes it


def as_csv(collected: Collected) -> str:
    """Return the points of each student in each lab of which there are results; none for who handed in nothing."""
    out = io.StringIO()
    rows = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    rows.writeheader()
    for lab in collected.labs:
        source = sources.find(lab)
        exercises = {str(number) for number in sources.exercises(sources.read(source))}
        for student in sorted(collected.students):
            points = float(len(exercises.intersection(collected.passed(student, lab))))
            rows.writerow(
                {
                    "assignment": source.stem,
                    "timestamp": _time(collected.results.get((student, lab), {}).get("when", "")),
                    "student_id": _text(student),
                    "raw_score": points,
                    "late_submission_penalty": 0.0,
                    "score": points,
                    "max_score": float(len(exercises)),
                }
            )
    return out.getvalue()


def _time(when: str) -> str:
    """Return the time as nbgrader writes it; nothing for what is none."""
    try:
        return str(datetime.strptime(when, WHEN))
    except ValueError:
        return ""


def _text(name: str) -> str:
    """Return a name in UTF-8 that no spreadsheet takes for a formula: an apostrophe before it says that it is text."""
    name = name.encode(errors="replace").decode()
    return f"'{name}" if name.lstrip(" ").startswith(FORMULA) else name
