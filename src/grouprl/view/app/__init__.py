"""The application in which runs are looked at: its questions and answers, its page and its server."""
