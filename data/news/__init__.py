"""Short news articles in English with two-sentence summaries, made from facts that are drawn at random.

Read the files in this order: `names` (the parts of made-up names), `draw` (random facts, and the rule that keeps some
names and numbers out of the training set), `writing` (from templates to text), then the kinds of news (`matches` with
`goals`, `earnings`, `weather`, `appointments`: each draws facts and says in what words they may be told), and `corpus`
(whole examples, each checked).
"""
