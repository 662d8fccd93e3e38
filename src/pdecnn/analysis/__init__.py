"""Costs, latency and the tables of the papers: functions that return dataclasses."""
