"""Section 6.3, Table 4: English constituency parsing."""

from specs import expect
from specs.judge import spec
from specs.test_6_1_translation import hypotheses, log_probability


@spec("6.3-parser-sizes")
def test_parser_sizes(subject):
    sizes = subject.recipe("parsing").sizes
    expect.equal((sizes.layers, sizes.d_model) if sizes else None, (4, 1024), "layers and d_model of the parser")


@spec("choice-parser-other-sizes")
def test_parser_other_sizes(subject):
    sizes = subject.recipe("parsing").sizes
    expect.equal((sizes.d_ff, sizes.heads) if sizes else None, (2048, 8), "d_ff and h of the parser (the base model's)")


@spec("6.3-parser-search")
def test_parser_search(subject):
    model, source, found = hypotheses(subject, beam=21, alpha=0.3, count=5)
    for tokens, score in found[:5]:
        log_p = log_probability(subject, model, source, tokens)
        expected = expect.number(subject.score(log_p, len(tokens) + 1, 0.3), "a score")
        expect.near(score, expected, 1e-4, "the score of a hypothesis under beam 21, alpha 0.3")


@spec("6.3-output-limit")
def test_output_limit(subject):
    expect.equal(subject.length_limit(20, 300), 320, "the most words for a source of 20 words, the limit being 300 more")


@spec("6.3-beats-berkeley-parser")
def test_beats_berkeley(paper):
    table = paper.reported["table_4"]["wsj_only"]
    expect.true(table["transformer"] > table["berkeley"], "the Transformer to beat the BerkeleyParser on WSJ alone", table)


@spec("6.3-all-but-the-grammar-wsj")
def test_all_but_the_grammar(paper):
    table = paper.reported["table_4"]["wsj_only"]
    better = [name for name, f1 in table.items() if f1 > table["transformer"]]
    expect.equal(better, ["rnn_grammar"], "parsers trained on WSJ alone that beat the Transformer")


@spec("6.3-best-semi-supervised")
def test_best_semi_supervised(paper):
    table = paper.reported["table_4"]["semi_supervised"]
    expect.equal(max(table, key=table.get), "transformer", "the best semi-supervised parser")


@spec("contradiction-multi-task-parser")
def test_multi_task(paper):
    table = paper.reported["table_4"]
    better = table["multi_task"]["luong"] > table["semi_supervised"]["transformer"]
    expect.true(better, "the multi-task parser, no recurrent grammar, above the Transformer's 92.7", table["multi_task"])
