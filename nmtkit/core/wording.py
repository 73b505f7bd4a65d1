"""Words of messages."""


def shorten(text: str, most: int = 100) -> str:
    """The text, or its beginning where it is long: a message quotes what was given, and that may be anything."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def format_minutes(minutes: float) -> str:
    """About 5 minutes, about 3 hours, about 2 days."""
    if minutes < 0.7:
        return "less than a minute"
    if minutes < 1.5:
        return "about a minute"
    hours = minutes / 60
    if hours < 1.7:
        return f"about {minutes:.0f} minutes"
    return f"about {hours:.0f} hours" if hours < 48 else f"about {hours / 24:.0f} days"
