"""Lessons in words for a model that is not trained: what a group of completions teaches, kept as text."""

from grouprl.lessons.library import Change, LessonLibrary
from grouprl.lessons.practice import BatchReport, Practice

__all__ = ["BatchReport", "Change", "LessonLibrary", "Practice"]
