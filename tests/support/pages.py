"""Reading the HTML pages that the package writes."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Tables as rows of cell texts, captions, attributes that could load something, and all texts."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.captions, self.loads, self.tags, self.text = [], [], [], set(), ""
        self._cell = self._caption = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.loads += [
            (name, value)
            for name, value in attributes
            if name in ("src", "href", "xlink:href", "data") and value[:1] != "#"
        ]
        self.tables += [[]] if tag == "table" else []
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self._cell = ""
        if tag == "figcaption":
            self._caption = ""

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.tables[-1][-1].append(self._cell)
            self._cell = None
        if tag == "figcaption":
            self.captions.append(" ".join(self._caption.split()))
            self._caption = None

    def handle_data(self, data):
        self.text += data
        if self._cell is not None:
            self._cell += data
        if self._caption is not None:
            self._caption += data
