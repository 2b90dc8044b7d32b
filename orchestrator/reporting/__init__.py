"""How answers are shown: tables, pages, the dashboard."""
