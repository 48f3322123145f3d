"""Constituency trees as text: reading brackets, linearising them for a sequence model, restoring, scoring.

Section 6.3 follows Vinyals & Kaiser et al. (2015), "Grammar as a Foreign Language": the source is the sentence, the
target its tree as a string in which every word is ``XX`` and closing brackets are labelled::

    (S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .))    the dog barks .
                                                        (S (NP XX XX )NP (VP XX )VP XX )S
"""

import re
from collections import Counter
from dataclasses import dataclass, field

WORD = "XX"
TOP = "TOP"  # the root of a restored tree that has no root of its own

# As in EVALB's COLLINS.prm: what does not count.
UNCOUNTED_LABELS = {TOP, "ROOT", "S1", ""}
PUNCTUATION_TAGS = {",", ":", "``", "''", "."}
SAME_LABEL = {"PRT": "ADVP"}


@dataclass
class Leaf:
    """A word under its part-of-speech tag."""

    tag: str
    word: str


@dataclass
class Tree:
    """A constituent: a label over constituents and words."""

    label: str
    children: list = field(default_factory=list)

    def leaves(self):
        """The words in order, as a list of :class:`Leaf`."""
        return [leaf for child in self.children
                for leaf in ([child] if isinstance(child, Leaf) else child.leaves())]

    def __str__(self):
        parts = [f"({child.tag} {child.word})" if isinstance(child, Leaf) else str(child) for child in self.children]
        return f"({' '.join([self.label, *parts])})"


def read(text, name="text"):
    """The trees of a text in Penn Treebank's brackets, in order, over any number of lines.

    Raises:
        ValueError: brackets that do not match, or a word without a tag; ``name`` and the line are told
    """
    trees, stack = [], []
    for match in re.finditer(r"[()]|[^\s()]+", text):
        token = match.group()
        if token == "(":
            stack.append(Tree("", []))
        elif not stack:
            raise ValueError(f"{_place(name, text, match)}: {token} stands outside of all trees")
        elif token == ")":
            tree = stack.pop()
            node = _finished(tree)
            if node is None:
                raise ValueError(f"{_place(name, text, match)}: a bracket holds words beside other brackets or nothing")
            if stack:
                stack[-1].children.append(node)
            elif isinstance(node, Leaf):
                raise ValueError(f"{_place(name, text, match)}: ({node.tag} {node.word}) is a word, not a tree")
            else:
                trees.append(node)
        elif not stack[-1].label and not stack[-1].children:
            stack[-1].label = token
        else:
            stack[-1].children.append(token)
    if stack:
        raise ValueError(f"{name}: {len(stack)} brackets are not closed at the end")
    return trees


def _place(name, text, match):
    return f"{name}, line {text.count(chr(10), 0, match.start()) + 1}"


def _finished(tree):
    """A closed bracket as Leaf or Tree, ``None`` if it is neither."""
    words = [child for child in tree.children if isinstance(child, str)]
    if not words and tree.children:
        return tree
    if len(words) == 1 and len(tree.children) == 1:
        return Leaf(tree.label, words[0])
    return None


def normalise(tree):
    """The tree as parsers are trained on it: no traces, no function tags, no bracket around the whole.

    ``(NP-SBJ-1 ...)`` becomes ``(NP ...)``, constituents of traces alone vanish, and a root that does not count
    (TOP, ROOT, S1 or no label) with one constituent gives way to it. Returns ``None`` if no word is left.
    """
    children = []
    for child in tree.children:
        if isinstance(child, Tree):
            child = normalise(child)
            if child is not None:
                children.append(child)
        elif child.tag != "-NONE-":
            children.append(child)
    if not children:
        return None
    label = re.split(r"(?<=.)[-=]", tree.label)[0] if tree.label else ""
    if label in UNCOUNTED_LABELS and len(children) == 1 and isinstance(children[0], Tree):
        return children[0]
    return Tree(label or TOP, children)


def linearise(tree):
    """The target tokens of a tree."""
    tokens = [f"({tree.label}"]
    for child in tree.children:
        tokens += [WORD] if isinstance(child, Leaf) else linearise(child)
    return [*tokens, f"){tree.label}"]


def restore(tokens, leaves):
    """The tree that ``tokens`` describe over ``leaves``; returns ``(tree, repaired)``.

    Any token sequence gives a tree with exactly these leaves. What does not fit is repaired:

    - a closing bracket closes everything inside the innermost open constituent of its label; without one it is dropped;
    - brackets still open at the end are closed there;
    - words of the output beyond the sentence's are dropped; missing ones are added at the end of the root;
    - constituents without a word, and tokens that are neither bracket nor ``XX``, are dropped;
    - what is not one constituent is put under a root TOP, which does not count in the score.
    """
    root = Tree(TOP)
    open_, remaining, repaired = [root], list(leaves), False
    for token in tokens:
        if token == WORD and remaining:
            open_[-1].children.append(remaining.pop(0))
        elif token.startswith("(") and len(token) > 1:
            constituent = Tree(token[1:])
            open_[-1].children.append(constituent)
            open_.append(constituent)
        elif token.startswith(")") and token[1:] in (constituent.label for constituent in open_[1:]):
            repaired |= open_[-1].label != token[1:]
            while open_.pop().label != token[1:]:
                pass
        else:
            repaired = True
    repaired |= len(open_) > 1 or bool(remaining)
    repaired |= _drop_empty(root)
    single = len(root.children) == 1 and isinstance(root.children[0], Tree)
    if single:
        root = root.children[0]
    root.children += remaining
    return root, repaired or not single


def _drop_empty(tree):
    """Remove constituents without words; tells whether there were any."""
    dropped = [_drop_empty(child) for child in tree.children if isinstance(child, Tree)]
    kept = [child for child in tree.children if isinstance(child, Leaf) or child.children]
    changed = any(dropped) or len(kept) < len(tree.children)
    tree.children = kept
    return changed


def brackets(tree, counted):
    """All constituents as a multiset of ``(label, first, end)``.

    ``counted[i]`` says whether word ``i`` counts: positions skip the others, as EVALB skips punctuation. Constituents
    over no counted word, and uncounted labels, are left out.
    """
    found = Counter()

    def walk(node, first, position):
        for child in node.children:
            if isinstance(child, Leaf):
                first, position = first + 1, position + counted[first]
            else:
                start = position
                first, position = walk(child, first, position)
                label = SAME_LABEL.get(child.label, child.label)
                if position > start and label not in UNCOUNTED_LABELS:
                    found[label, start, position] += 1
        return first, position

    walk(Tree(TOP, [tree]), 0, 0)
    return found


@dataclass(frozen=True)
class Score:
    """Labelled brackets over a corpus; ``matched`` stand in both, each once."""

    matched: int
    gold: int
    parsed: int
    exact: int
    sentences: int

    @property
    def precision(self):
        return self.matched / self.parsed if self.parsed else 0.0

    @property
    def recall(self):
        return self.matched / self.gold if self.gold else 0.0

    @property
    def f1(self):
        both = self.gold + self.parsed
        return 2 * self.matched / both if both else 0.0


def score(gold_trees, parsed_trees):
    """Labelled bracketing as EVALB with COLLINS.prm counts it: see :func:`brackets`.

    Tags are not compared; which words are punctuation is decided by the gold tags.

    Raises:
        ValueError: different numbers of trees, or trees over different words
    """
    if len(gold_trees) != len(parsed_trees):
        raise ValueError(f"{len(gold_trees)} gold trees but {len(parsed_trees)} parsed ones")
    matched = gold_total = parsed_total = exact = 0
    for number, (gold, parsed) in enumerate(zip(gold_trees, parsed_trees), 1):
        leaves = gold.leaves()
        if [leaf.word for leaf in leaves] != [leaf.word for leaf in parsed.leaves()]:
            raise ValueError(f"the words of gold tree {number} and of parsed tree {number} differ")
        counted = [leaf.tag not in PUNCTUATION_TAGS for leaf in leaves]
        of_gold, of_parsed = brackets(gold, counted), brackets(parsed, counted)
        matched += (of_gold & of_parsed).total()
        gold_total += of_gold.total()
        parsed_total += of_parsed.total()
        exact += of_gold == of_parsed
    return Score(matched, gold_total, parsed_total, exact, len(gold_trees))
