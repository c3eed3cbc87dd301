"""Analyses, IR -> facts about a kernel; programs are not changed, apart from marks on loops."""
