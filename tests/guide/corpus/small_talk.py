"""Greetings, thanks and questions that the guide cannot answer.

Knows exchanges and phrases that people put around a question; does not know facts.
"""

from __future__ import annotations

from random import Random

from guide.corpus.words import ANIMALS, CITIES, FIRST_NAMES, FOODS

Exchange = tuple[str, str]

_GREETINGS = (
    (("Hello", "Hello!", "hello there", "Hello, how are you?"), "Hello! What would you like to know about eaglelocal?"),
    (("Hi", "hi", "Hi there!", "hey"), "Hi! Ask me about eaglelocal or your home lab."),
    (("Good morning", "good morning!"), "Good morning! How can I help?"),
    (("Good evening", "good evening!"), "Good evening! How can I help?"),
    (("How are you?", "how are you doing", "How is it going?"), "I am fine, thank you. What would you like to know?"),
    (("Nice to meet you.", "nice to meet you!"), "Nice to meet you too. Ask me anything about eaglelocal."),
    (("Are you there?", "anyone there?", "are you awake"), "Yes, I am here. Ask me something."),
    (("Can I ask you something?", "I have a question.", "may I ask a question"), "Of course. Go ahead."),
    (
        ("I am new here.", "I am a beginner.", "this is my first time"),
        "Welcome! Start with a simple question, and I will explain.",
    ),
    (("Let's start.", "ok, let us begin", "Ready?"), "I am ready. What is your question?"),
    (("test", "Testing.", "testing 1 2 3"), "I can read you. Ask me something."),
    (
        ("Can you help me?", "help", "I need help"),
        "I can help with eaglelocal, short texts, sums, German sentences and small Python functions.",
    ),
)
_REPLIES = (
    (("Thanks!", "thanks", "Thank you.", "thank you very much", "thx"), "You are welcome!"),
    (("Great, thanks for the help.", "that helped, thank you", "Perfect, thank you!"), "Glad I could help!"),
    (("OK.", "ok", "okay", "I see.", "got it"), "Good. Is there anything else?"),
    (("Interesting.", "interesting!", "Oh, nice.", "cool"), "There is more to know. Just ask."),
    (
        ("Are you sure?", "really?", "Is that right?"),
        "That is what I know, but I am a tiny model, so check what matters.",
    ),
    (("I don't understand.", "that is too complicated"), "Ask about one word of it, and I will explain it."),
    (("You are funny.", "you are clever", "good answer"), "Thank you! That is kind."),
    (
        ("That was wrong.", "no, that is wrong", "You made a mistake."),
        "I am sorry. I am a tiny model and I make mistakes.",
    ),
    (
        ("Tell me a joke.", "tell me a joke", "Do you know a joke?", "make me laugh", "joke please"),
        "Why did the target marry the draft head? It accepted every proposal.",
    ),
    (
        ("Tell me another joke.", "another joke", "one more joke"),
        "A draft head walks into a bar. Rejected at the door.",
    ),
    (("That was fast.", "wow, that was quick"), "Thank you. Drafting ahead makes it fast."),
)
_FAREWELLS = (
    (("Bye", "bye!", "Goodbye.", "see you"), "Goodbye!"),
    (("Good night", "good night!"), "Good night!"),
    (("That is all, thanks.", "no more questions, thank you", "I am done."), "You are welcome. Until next time!"),
    (("See you tomorrow.", "until tomorrow", "talk to you later"), "See you!"),
)

_UNKNOWN = (
    "What is the capital of {place}?",
    "Who is the president of {place}?",
    "How many people live in {place}?",
    "What is the weather in {place} today?",
    "Who won the match in {place} yesterday?",
    "Tell me the news from {place}.",
    "How do I cook {food}?",
    "Where can I buy {food}?",
    "How old can a {animal} get?",
    "What does a {animal} eat?",
    "What should I call my {animal}?",
    "When was {name} born?",
    "What is the phone number of {name}?",
    "Do you know my friend {name}?",
    "What is my name?",
    "Who wrote the book about {name}?",
    "What time is it in {place}?",
    "How far is it from {place} to {other}?",
    "Which doctor should I see in {place}?",
    "What will the stock market do tomorrow?",
    "What is the meaning of life?",
    "Can you book a flight to {place}?",
    "Sing me a song about {place}.",
    "Write a poem about a {animal}.",
    "Tell me a story about a {animal}.",
    "Which film should I watch?",
    "What is the best {food} recipe?",
    "Who was {name}?",
    "Who invented {food}?",
    "Where is {place}?",
    "How tall is a {animal}?",
    "What day is it today?",
    "Recommend a restaurant in {place}.",
    "What is the square root of two?",
    "How many planets are there?",
    "Why is the sky blue?",
    "How old is the universe?",
    "What does {name} do for a living?",
)
_NOT_KNOWN = "I do not know that. I am a tiny guide to eaglelocal, home-lab hardware and speculative decoding."

_FRAMES = (
    "hey, {q}",
    "Hi, {q}",
    "Hello! {q}",
    "quick question: {q}",
    "Quick question: {q}",
    "One question: {q}",
    "please tell me: {q}",
    "Please: {q}",
    "thanks! {q}",
    "Thanks! {q}",
    "ok, {q}",
    "And {q}",
    "so, {q}",
    "I wonder: {q}",
    "I would like to know: {q}",
    "Can you tell me: {q}",
    "{q} please",
    "{q} Thanks!",
    "{q} I am curious.",
    "{q} I am new to this.",
    "Sorry, {q}",
    "Another question: {q}",
    "Next: {q}",
    "Question: {q}",
    "can you help? {q}",
)


def greeting(rng: Random) -> Exchange:
    return _one_of(rng, _GREETINGS)


def reply(rng: Random) -> Exchange:
    return _one_of(rng, _REPLIES)


def farewell(rng: Random) -> Exchange:
    return _one_of(rng, _FAREWELLS)


def unknown(rng: Random) -> Exchange:
    place, other = rng.sample(CITIES, 2)
    values = {"food": rng.choice(FOODS), "animal": rng.choice(ANIMALS), "name": rng.choice(FIRST_NAMES)}
    return rng.choice(_UNKNOWN).format(place=place, other=other, **values), _NOT_KNOWN


def framed(rng: Random, question: str) -> str:
    """Return the question as it is, or inside a phrase that people put around questions."""
    return rng.choice(_FRAMES).format(q=question) if rng.random() < 0.25 else question


def _one_of(rng: Random, exchanges: tuple[tuple[tuple[str, ...], str], ...]) -> Exchange:
    questions, answer = rng.choice(exchanges)
    return rng.choice(questions), answer
