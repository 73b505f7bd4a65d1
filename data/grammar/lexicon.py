"""The words: nouns, adjectives, verbs, names and adverbs, as tables that a person can read and extend.

Within a table the common words come first: the sampler prefers them. An underscore stands for a space; a backslash
at the end of a line joins it with the next one.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from grammar import english, french

# kind: entries. An entry is `english[/plural] french[/plural] gender`; "-" as plural: used in the singular only.
_NOUNS = """
person: man/men homme m; woman/women femme f; boy garçon m; girl fille f; child/children enfant m; friend ami m
person: teacher professeur m; student étudiant m; doctor médecin m; neighbour voisin m; nurse infirmière f
person: lady dame f; farmer fermier m; king roi m; queen reine f; actress actrice f; actor acteur m
person: lawyer avocat m; engineer ingénieur m; waitress serveuse f; waiter serveur m; princess princesse f
person: prince prince m; writer écrivain m; painter peintre m; soldier soldat m; policeman/policemen policier m
person: journalist journaliste m; artist artiste m; baker boulanger m; thief/thieves voleur m; tourist touriste m
person: judge juge m; driver chauffeur m; cook cuisinier m; gardener jardinier m; customer client m; boss patron m
person: director directeur m; secretary secrétaire f; dancer danseuse f; hunter chasseur m; mayor maire m
person: fisherman/fishermen pêcheur m; guest invité m
baby: baby bébé m
kin: mother mère f; father père m; brother frère m; sister sœur f; son fils m; daughter fille f; husband mari m
kin: wife/wives femme f; uncle oncle m; aunt tante f; cousin cousin m; grandmother grand-mère/grands-mères f
kin: grandfather grand-père/grands-pères m; nephew neveu m; niece nièce f
animal: dog chien m; cat chat m; horse cheval m; bird oiseau m; cow vache f; mouse/mice souris f; rabbit lapin m
animal: lamb agneau m; hen poule f; duck canard m; fox renard m; wolf/wolves loup m; bear ours m; pig cochon m
animal: goat chèvre f; lion lion m; elephant éléphant m; monkey singe m; butterfly papillon m; tortoise tortue f
animal: bee abeille f; snake serpent m
food: apple pomme f; egg œuf m; cake gâteau m; orange orange f; potato pomme_de_terre/pommes_de_terre f
food: tomato tomate f; sandwich sandwich m; pear poire f; strawberry fraise f; banana banane f; carrot carotte f
food: cherry cerise f; biscuit biscuit m; onion oignon m; lemon citron m; mushroom champignon m; peach pêche f
food: bean haricot m; pizza pizza f
dish: bread/- pain m; cheese/- fromage m; meat/- viande f; soup/- soupe f; rice/- riz m; chocolate/- chocolat m
dish: honey/- miel m; jam/- confiture f; ham/- jambon m
grocery: butter/- beurre m; sugar/- sucre m; salt/- sel m; oil/- huile f; flour/- farine f
drink: water/- eau f; coffee/- café m; milk/- lait m; tea/- thé m; wine/- vin m; beer/- bière f
drink: orange_juice/- jus_d'_orange m
text: book livre m; letter lettre f; newspaper journal m; story histoire f; novel roman m; poem poème m
text: message message m; article article m
thing: key clé f; bag sac m; box boîte f; photo photo f
thing: gift cadeau m; flower fleur f; bottle bouteille f; glass verre m
thing: umbrella parapluie m; pen stylo m; computer ordinateur m; phone téléphone m; watch montre f; painting tableau m
thing: cup tasse f; plate assiette f; knife/knives couteau m; lamp lampe f; toy jouet m; ball balle f; ticket billet m
thing: guitar guitare f; piano piano m; suitcase valise f; map carte f; mirror miroir m; tool outil m; clock horloge f
thing: doll poupée f; stone pierre f; spoon cuillère f
thing: pencil crayon m; rope corde f; television télévision f; candle bougie f
clothes: shirt chemise f; dress robe f; hat chapeau m; coat manteau m; shoe chaussure f; jacket veste f; skirt jupe f
clothes: scarf/scarves écharpe f; glove gant m; tie cravate f; sweater pull m; ring bague f; sock chaussette f
vehicle: car voiture f; bike vélo m; bus bus m; train train m; boat bateau m; plane avion m; truck camion m
vehicle: motorcycle moto f; taxi taxi m
furniture: table table f; chair chaise f; bed lit m; sofa canapé m; desk bureau m; armchair fauteuil m
furniture: carpet tapis m; shelf/shelves étagère f; cupboard armoire f
part: door porte f; window fenêtre f; wall mur m; roof toit m; gate portail/portails m
building: house maison f; school école f; hotel hôtel m; restaurant restaurant m; shop magasin m; station gare f
building: church église f; museum musée m; library bibliothèque f; hospital hôpital m; bank banque f; farm ferme f
building: castle château m; factory usine f; theatre théâtre m; cinema cinéma m; airport aéroport m
building: university université f; bakery boulangerie f; pharmacy pharmacie f; stadium stade m
building: swimming_pool piscine f
room: kitchen cuisine f; bedroom chambre f; living_room salon m; bathroom salle_de_bains/salles_de_bains f
room: cellar cave f; classroom salle_de_classe/salles_de_classe f
outdoors: garden jardin m; street rue f; park parc m; forest forêt f; village village m; city ville f; field champ m
outdoors: mountain montagne f
sight: tree arbre m; river rivière f; lake lac m; bridge pont m; island île f; beach plage f; sea mer f; tower tour f
sight: market marché m; road route f
thought: question question f; problem problème m; idea idée f
thought: solution solution f; answer réponse f; reason raison f; word mot m
thought: decision décision f; mistake erreur f; rule règle f; lesson leçon f; language langue f; project projet m
event: song chanson f; film film m; game jeu m; party fête f
event: war guerre f; meal repas m; trip voyage m; meeting réunion f
event: exam examen m; concert concert m
secret: secret secret m; name nom m; address adresse f; colour couleur f; price prix m; noise bruit m
time: day jour m; week semaine f; month mois m; year an m; hour heure f; minute minute f; night nuit f
"""

# group: entries. An entry is `english[/comparative] french[/feminine[/plural]]`; the comparative "+" is the regular -er
# one, none means "more"; the groups say which nouns an adjective fits. Those of `before` stand before the French noun.
_ADJECTIVES = """
before any: small/+ petit; big/+ grand; new/+ nouveau/nouvelle; old/+ vieux/vieille; beautiful beau/belle; pretty/+ joli
before any: bad mauvais; good/better bon
before person: young/+ jeune; tall/+ grand
before animal: fat/+ gros/grosse
after person: happy/+ heureux; rich/+ riche; tired fatigué; sick/+ malade; sad/+ triste; intelligent intelligent
after person: poor/+ pauvre; famous célèbre; strong/+ fort; honest honnête; kind/+ gentil/gentille; proud/+ fier
after person: polite poli; lazy/+ paresseux; curious curieux; jealous jaloux/jalouse; brave/+ courageux; calm/+ calme
after person: shy timide; nervous nerveux; serious sérieux; patient patient; elegant élégant; weak/+ faible
after person: hard-working travailleur
after nation: French français; English anglais; German allemand; Italian italien; Spanish espagnol
after nation: American américain; Japanese japonais; Russian russe; Chinese chinois
after colour: red rouge; white blanc/blanche; black noir; blue bleu; green vert; yellow jaune; grey gris; brown brun
after colour: pink rose
after thing: expensive cher; heavy/+ lourd; clean/+ propre; dirty/+ sale; empty vide; light/+ léger/légère
after thing: modern moderne; broken cassé; useful utile; round rond; square carré; solid solide
after thing: ancient ancien; rare rare
after book: long/+ long/longue
after place: quiet/+ tranquille; modern moderne; ancient ancien; dangerous dangereux; noisy/+ bruyant; empty vide
after place: clean/+ propre; dark/+ sombre; comfortable confortable
after food: delicious délicieux; cold/+ froid; hot/+ chaud; fresh/+ frais/fraîche; ripe mûr; sweet/+ sucré
after thought: interesting intéressant; important important; difficult difficile; easy/+ facile; strange étrange
after thought: simple simple; funny/+ drôle; boring ennuyeux; useful utile; clear/+ clair
after animal: wild/+ sauvage; dangerous dangereux; hungry affamé; gentle doux/douce; fast/+ rapide
"""

# `english/past/participle tail | french tail | frame | subjects | objects | flags`.
# English tail: a particle or preposition. French tail: a noun of the idiom. Subjects: kinds of nouns. Objects: kinds of
# nouns or single English nouns. Frames: none; direct, à, de: how the French object follows; place, to, from, into: a
# place follows; inf, à-inf, de-inf: an infinitive follows; give, tell, ask: a thing and a person follow
# place follows; inf, à-inf, de-inf: adjective; that.
# Flags: state (English past = imparfait, no -ing), lasting (may be in progress), generic (liking: objects take le),
# passive (may be used in the passive), modal (can, must: no do, no to), would (would like), full (no clitic for à).
_VERBS = """
sleep/slept | dormir | none | person animal | | lasting
work | travailler | none | person | | lasting
sing/sang/sung | chanter | none | person | | lasting
cry | pleurer | none | person | | lasting
play | jouer | none | person animal | | lasting
arrive | arriver | none | person | |
leave/left | partir | none | person | |
run/ran/run | courir | none | person animal | | lasting
laugh | rire | none | person | | lasting
dance | danser | none | person | | lasting
travel/travelled | voyager | none | person | | lasting
fall/fell/fallen | tomber | none | person animal | |
walk | marcher | none | person animal | | lasting
smile | sourire | none | person | | lasting
swim/swam/swum | nager | none | person animal | | lasting
come/came/come back | revenir | none | person | |
go/went/gone out | sortir | none | person | |
get/got/got up | se_lever | none | person | |
rest | se_reposer | none | person | |
wake/woke/woken up | se_réveiller | none | person | |
hurry | se_dépêcher | none | person | |
shout | crier | none | person | | lasting
lie | mentir | none | person | | lasting
have/had fun | s'_amuser | none | person | |
fall/fell/fallen asleep | s'_endormir | none | person animal | |
get/got/got dressed | s'_habiller | none | person | |
go/went/gone for a walk | se_promener | none | person | |
stop | s'_arrêter | none | person vehicle | |
die | mourir | none | person animal | |
be hungry | avoir faim | none | person animal | | state
be thirsty | avoir soif | none | person animal | | state
be cold | avoir froid | none | person | | state
be sleepy | avoir sommeil | none | person | | state
be right | avoir raison | none | person | | state
be wrong | avoir tort | none | person | | state
be in a hurry | être pressé | none | | | state
see/saw/seen | voir | direct | person animal | person kin animal thing vehicle building sight film |
eat/ate/eaten | manger | direct | person animal | food dish | lasting passive
buy/bought | acheter | direct | person | thing food dish drink grocery clothes vehicle furniture text | passive
read/read | lire | direct | person | text | lasting passive
write/wrote/written | écrire | direct | person | text | lasting passive
find/found | trouver | direct | person animal | thing animal clothes answer solution name | passive
look at | regarder | direct | person animal | person animal thing sight film game clothes | lasting
have/had | avoir | direct | person | thing vehicle animal clothes idea question problem answer secret | state
drink/drank/drunk | boire | direct | person animal | drink | lasting
know/knew | connaître | direct | person | person kin village city song story rule address secret building | state
look for | chercher | direct | person animal | person animal thing clothes vehicle address answer | lasting
sell/sold | vendre | direct | person | thing food dish drink clothes vehicle building furniture | passive
like | aimer | direct | person | food dish drink animal song film game person sea mountain | state generic
wait for | attendre | direct | person | person kin bus train taxi plane answer meal | lasting
help | aider | direct | person | person kin | lasting
take/took/taken | prendre | direct | person | bag key umbrella book bus train taxi plane bike map suitcase \
    phone photo coat hat boat |
open | ouvrir | direct | person | part box bag book letter suitcase umbrella shop bottle cupboard restaurant | passive
lose/lost | perdre | direct | person | key bag ticket phone watch pen umbrella ring glove scarf hat letter map \
    suitcase ball game |
hear/heard | entendre | direct | person animal | person animal vehicle song noise story | passive
meet/met | rencontrer | direct | person | person kin |
wear/wore/worn | porter | direct | person | clothes watch | lasting
visit | visiter | direct | person | museum church castle city village factory university farm school hospital \
    island tower lake bridge | lasting passive
listen to | écouter | direct | person | song concert story kin person | lasting
prepare | préparer | direct | person | meal party trip meeting exam soup cake sandwich coffee tea rice lesson | \
    lasting passive
clean | nettoyer | direct | person | room house shop car window table mirror bus truck door carpet wall shoe \
    bike | lasting passive
close | fermer | direct | person | part box bag book suitcase umbrella shop cupboard restaurant | passive
break/broke/broken | casser | direct | person animal | glass cup plate window bottle watch lamp toy mirror \
    chair door phone clock | passive
wash | laver | direct | person | clothes car plate cup glass apple dog spoon knife window bus truck horse | \
    lasting passive
repair | réparer | direct | person | vehicle watch clock computer lamp phone toy door window roof wall chair \
    table television piano | lasting passive
understand/understood | comprendre | direct | person | thought story book film person poem letter |
love | adorer | direct | person | food dish drink animal song film game kin concert party | state generic
invite | inviter | direct | person | person kin | passive
choose/chose/chosen | choisir | direct | person | thing clothes food text vehicle film song name colour \
    furniture | passive
follow | suivre | direct | person animal | person animal vehicle | lasting
receive | recevoir | direct | person | letter message gift newspaper book answer ticket photo |
paint | peindre | direct | person | door window wall house church boat tree river bridge sea garden castle \
    chair | lasting passive
drive/drove/driven | conduire | direct | person | car bus truck taxi train motorcycle | lasting
carry | porter | direct | person | bag box suitcase chair baby table bottle bike lamp gift plate | lasting
forget/forgot/forgotten | oublier | direct | person | thing clothes secret word name lesson | passive
build/built | construire | direct | person | house school church castle bridge wall boat tower hospital hotel \
    station road factory | lasting passive
study | étudier | direct | person | lesson language project problem book map article question | lasting
hate | détester | direct | person | food dish drink animal exam noise meeting | state generic
finish | finir | direct | person | book letter meal exam game lesson project novel article trip message |
hide/hid/hidden | cacher | direct | person | key gift letter bottle box ring photo toy cake secret chocolate | passive
throw/threw/thrown | jeter | direct | person | ball toy key box shoe bottle apple hat stone | passive
draw/drew/drawn | dessiner | direct | person | animal tree house car flower boat map castle bridge | lasting passive
thank | remercier | direct | person | person kin |
steal/stole/stolen | voler | direct | person | bag phone watch car ring bike computer painting key hat apple \
    horse boat | passive
catch/caught | attraper | direct | person animal | animal ball thief |
bring/brought | apporter | direct | person | thing food dish drink grocery chair text |
prefer | préférer | direct | person | food dish drink animal song film game | state generic
protect | protéger | direct | person animal | person animal kin | lasting
admire | admirer | direct | person | person painting castle church tower garden bridge sea lake | state
touch | toucher | direct | person animal | person wall animal flower piano mirror door |
call | appeler | direct | person | person kin dog cat taxi |
push | pousser | direct | person | vehicle furniture part person | lasting
translate | traduire | direct | person | text word song lesson question answer | lasting passive
cut/cut | couper | direct | person | bread cake cheese meat apple rope tomato onion lemon carrot flower tree | passive
use | utiliser | direct | person | computer phone tool pen knife map umbrella grocery rope pencil bike word | passive
keep/kept | garder | direct | person | key letter photo secret ring gift ticket box bottle |
explain | expliquer | direct | person | rule problem lesson idea project decision reason word game question | passive
kiss | embrasser | direct | person | person kin |
pay for | payer | direct | person | ticket meal coffee bread hat trip taxi dress computer lesson |
burn | brûler | direct | person | letter newspaper photo map house book | passive
hit/hit | frapper | direct | person | person ball wall dog table | passive
greet | saluer | direct | person | person kin |
pull | tirer | direct | person animal | vehicle rope horse table door | lasting
rent | louer | direct | person | house car bike boat room castle bus truck film |
borrow | emprunter | direct | person | book car bike pen umbrella computer tool map newspaper suitcase |
feed/fed | nourrir | direct | person | animal baby child | lasting
count | compter | direct | person | bottle book chair apple key ticket cow bird glass egg lamb student |
correct | corriger | direct | person | mistake exam letter word text | passive
talk to | parler | à | person | person kin | lasting
answer | répondre | à | person | person kin text |
phone | téléphoner | à | person | person kin |
write/wrote/written to | écrire | à | person | person kin | lasting
smile at | sourire | à | person | person kin |
lie to | mentir | à | person | person kin |
obey | obéir | à | person | person kin |
belong to | appartenir | à | thing vehicle building animal | person kin | state
think/thought of | penser | à | person | person kin trip party exam problem | full
need | avoir besoin | de | person | thing tool car bike coat bread water coffee grocery person answer | state
be afraid of | avoir peur | de | person animal | animal exam person noise answer | state
talk about | parler | de | person | person film book trip party project problem war concert idea | lasting
dream of | rêver | de | person | trip castle island car party beach house | lasting
remember | se_souvenir | de | person | person name story song trip day party secret address | state
take/took/taken care of | s'_occuper | de | person | animal kin baby child garden house customer guest | lasting
laugh at | se_moquer | de | person | person kin clothes |
live | habiter | place | person | | state
stay | rester | place | person | |
go/went/gone | aller | to | person | |
come/came/come | venir | from | person | |
go/went/gone | entrer | into | person | |
return | rentrer | from | person | |
give/gave/given | donner | give | person | thing food text clothes animal dish | passive
show/showed/shown | montrer | give | person | text thing building animal |
send/sent | envoyer | give | person | text thing | passive
sell/sold | vendre | give | person | vehicle thing clothes animal | passive
offer | offrir | give | person | thing clothes animal |
lend/lent | prêter | give | person | thing vehicle text |
tell/told | raconter | tell | person | story |
ask/asked | demander | ask | person | thing address text |
want | vouloir | inf | person | | state
can/could | pouvoir | inf | person | | modal
must | devoir | inf | person | | modal
like | aimer | inf | person | | state
like | vouloir | inf | person | | would
hope | espérer | inf | person | | state
know/knew how | savoir | inf | person | | state
prefer | préférer | inf | person | | state
begin/began/begun | commencer | à-inf | person | |
learn | apprendre | à-inf | person | |
continue | continuer | à-inf | person | |
try | essayer | de-inf | person | |
decide | décider | de-inf | person | |
forget/forgot/forgotten | oublier | de-inf | person | |
refuse | refuser | de-inf | person | |
promise | promettre | de-inf | person | |
think/thought | penser | that | person | | state
know/knew | savoir | that | person | | state
say/said | dire | that | person | |
believe | croire | that | person | | state
hope | espérer | that | person | | state
be | être | adjective | | | state
become/became/become | devenir | adjective | | |
seem | sembler | adjective | | | state
be/be/been born | naître | born | person | |
cost/cost | coûter | price | | | state
rain | pleuvoir | weather | | | lasting
snow | neiger | weather | | | lasting
be cold | faire froid | weather | | | state
be hot | faire chaud | weather | | | state
be windy | avoir du vent | sky | | | state
"""

_MEN = (
    "Paul Pierre Thomas Nicolas Martin Louis Antoine Robert Daniel David Simon Philippe Vincent Arthur Lucas Victor "
    "Olivier Marc Charles Gabriel Samuel Julien Benjamin Oscar"
)
_WOMEN = (
    "Marie Anne Sophie Claire Julie Alice Emma Sarah Laura Lucie Camille Isabelle Caroline Nathalie Élise Louise "
    "Charlotte Céline Émilie Inès Valérie Juliette Nina Rose"
)
# english french; a city has the same preposition everywhere, a country its gender: m, f or p (plural).
_CITIES = (
    "Paris Paris; Lyon Lyon; London Londres; Rome Rome; Berlin Berlin; Marseille Marseille; Madrid Madrid; "
    "Geneva Genève; Brussels Bruxelles; Vienna Vienne; Bordeaux Bordeaux; Lisbon Lisbonne; Athens Athènes; "
    "Nice Nice; Venice Venise; Montreal Montréal"
)
_COUNTRIES = (
    "France France f; England Angleterre f; Italy Italie f; Germany Allemagne f; Spain Espagne f; Canada Canada m; "
    "Japan Japon m; the_United_States États-Unis p; Russia Russie f; China Chine f; Portugal Portugal m; "
    "Mexico Mexique m; Greece Grèce f; Brazil Brésil m; the_Netherlands Pays-Bas p; Switzerland Suisse f"
)


@dataclass(frozen=True)
class Noun:
    """A noun of both languages; `gender` is `m` or `f`; an empty `en_plural` marks a mass noun."""

    en: str
    en_plural: str
    fr: str
    fr_plural: str
    gender: str
    kind: str


@dataclass(frozen=True)
class Adjective:
    """An adjective; `before` says that it stands before the French noun; an empty `comparative` means "more"."""

    en: str
    comparative: str
    fr: str
    fr_feminine: str
    before: bool
    group: str

    def form(self, gender: str, number: str) -> str:
        """The French form in agreement."""
        base = self.fr if gender == "m" else self.fr_feminine
        return base if number == "s" else french.plural(base)

    def form_before(self, gender: str, number: str, vowel: bool) -> str:
        """The French form before the noun: bel, nouvel, vieil before a vowel in the masculine singular."""
        special = {"beau": "bel", "nouveau": "nouvel", "vieux": "vieil"}
        if vowel and gender == "m" and number == "s" and self.fr in special:
            return special[self.fr]
        return self.form(gender, number)


@dataclass(frozen=True)
class Verb:
    """A verb of both languages with what it takes; see the comment over the table."""

    en: str
    past: str
    en_participle: str
    en_tail: str
    fr: str
    reflexive: bool
    fr_tail: str
    frame: str
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    flags: frozenset[str]

    @property
    def state(self) -> bool:
        """A state, not an action: no progressive in English, imparfait for the English past."""
        return bool(self.flags & {"state", "modal", "would"})

    def takes(self, noun: Noun) -> bool:
        """Whether the noun, or its kind, may be the object."""
        return noun.kind in self.objects or noun.en in self.objects


@dataclass(frozen=True)
class Name:
    """A person's name, the same in both languages."""

    text: str
    gender: str


@dataclass(frozen=True)
class Place:
    """A city (gender empty) or a country (`m`, `f`, `p` for plural)."""

    en: str
    fr: str
    gender: str


def _read_nouns() -> list[Noun]:
    nouns = []
    for line in _NOUNS.strip().splitlines():
        kind, _, entries = line.partition(": ")
        for entry in entries.split("; "):
            en_field, fr_field, gender = entry.split()
            en, _, en_plural = en_field.partition("/")
            fr, _, fr_plural = fr_field.partition("/")
            en_plural = "" if en_plural == "-" else en_plural or english.add_s(en)
            nouns.append(Noun(en, en_plural, fr, fr_plural or french.plural(fr), gender, kind))
    return nouns


def _read_adjectives() -> list[Adjective]:
    adjectives = []
    for line in _ADJECTIVES.strip().splitlines():
        head, _, entries = line.partition(": ")
        place, group = head.split()
        for entry in entries.split("; "):
            en_field, fr_field = entry.split()
            en, _, comparative = en_field.partition("/")
            comparative = english.add_er(en) if comparative == "+" else comparative
            fr, _, feminine = fr_field.partition("/")
            adjectives.append(
                Adjective(
                    en, comparative, fr, feminine or french.feminine(fr), place == "before", group
                )
            )
    return adjectives


def _read_verbs() -> list[Verb]:
    verbs = []
    for line in _VERBS.strip().splitlines():
        en_field, fr_field, frame, subjects, objects, flags = (
            field.strip() for field in line.split("|")
        )
        forms, _, en_tail = en_field.partition(" ")
        parts = forms.split("/")
        en = parts[0]
        past = parts[1] if len(parts) > 1 else english.add_ed(en)
        en_participle = parts[2] if len(parts) > 2 else past
        verb, _, fr_tail = fr_field.partition(" ")
        reflexive = verb.startswith(("se_", "s'_"))
        verbs.append(
            Verb(
                en,
                past,
                en_participle,
                en_tail,
                verb.split("_")[-1],
                reflexive,
                fr_tail,
                frame,
                tuple(subjects.split()),
                tuple(objects.split()),
                frozenset(flags.split()),
            )
        )
    return verbs


def _read_places(table: str) -> list[Place]:
    rows = [entry.split() for entry in table.split("; ")]
    return [Place(row[0].replace("_", " "), row[1], row[2] if len(row) > 2 else "") for row in rows]


NOUNS = _read_nouns()
ADJECTIVES = _read_adjectives()
VERBS = _read_verbs()
MEN = [Name(text, "m") for text in _MEN.split()]
WOMEN = [Name(text, "f") for text in _WOMEN.split()]
CITIES = _read_places(_CITIES)
COUNTRIES = _read_places(_COUNTRIES)


def nouns_of(kinds: Iterable[str]) -> list[Noun]:
    """All nouns of the kinds, or with these English names, in the order of the table."""
    wanted = frozenset(kinds)
    return [noun for noun in NOUNS if noun.kind in wanted or noun.en in wanted]


def noun(en: str) -> Noun:
    """The noun with this English singular."""
    return next(entry for entry in NOUNS if entry.en == en)


def adjective(en: str) -> Adjective:
    """The adjective with this English form."""
    return next(entry for entry in ADJECTIVES if entry.en == en)


def verb(en: str, frame: str, tail: str = "") -> Verb:
    """The verb with this English infinitive, frame and English tail (`verb("look", "direct", "at")`)."""
    return next(
        entry for entry in VERBS if (entry.en, entry.frame, entry.en_tail) == (en, frame, tail)
    )
