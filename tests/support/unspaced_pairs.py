"""Made-up pairs with English and a language that is written without spaces between words, in short lines."""

import random
from itertools import product

SUBJECTS = ("I", "you", "he", "she", "we", "they")
VERBS = ("read", "buy", "see", "like", "sell")
OBJECTS = ("books", "tea", "cats", "dogs", "rice", "shoes")
TIMES = ("today", "now", "often", "at home")
WORDS = {
    "zh": (
        ("我", "你", "他", "她", "我们", "他们"),
        ("读", "买", "看见", "喜欢", "卖"),
        ("书", "茶", "猫", "狗", "米饭", "鞋"),
    ),
    "ja": (
        ("私は", "君は", "彼は", "彼女は", "私達は", "彼らは"),
        ("読む", "買う", "見る", "好む", "売る"),
        ("本を", "お茶を", "猫を", "犬を", "米を", "靴を"),
    ),
    "th": (
        ("ฉัน", "คุณ", "เขา", "เธอ", "เรา", "พวกเขา"),
        ("อ่าน", "ซื้อ", "เห็น", "ชอบ", "ขาย"),
        ("หนังสือ", "ชา", "แมว", "สุนัข", "ข้าว", "รองเท้า"),
    ),
}
WORDS_OF_TIME = {
    "zh": ("今天", "现在", "常常", "在家"),
    "ja": ("今日", "今", "よく", "家で"),
    "th": ("วันนี้", "ตอนนี้", "บ่อย", "ที่บ้าน"),
}


def unspaced_pairs(language: str) -> list[tuple[str, str]]:
    """720 different pairs in random order."""
    subjects, verbs, objects = WORDS[language]
    pairs = []
    for subject, verb, noun, time in product(range(6), range(5), range(6), range(4)):
        source = f"{SUBJECTS[subject]} {VERBS[verb]} {OBJECTS[noun]} {TIMES[time]}."
        parts = [subjects[subject], verbs[verb], objects[noun], WORDS_OF_TIME[language][time]]
        if language == "zh":
            parts = [parts[0], parts[3], parts[1], parts[2]]
        if language == "ja":
            parts = [parts[0], parts[3], parts[2], parts[1]]
        pairs.append((source, "".join(parts) + ("" if language == "th" else "。")))
    random.Random(language).shuffle(pairs)
    return pairs
