"""The vocabulary of client files: how people write numbers, totals, footnotes and headings.

To read one more way of writing, add a word or a pattern here, or a format in ``formats.py``.
"""

import re

#: A space, and those without a break: U+00A0, figure, thin and narrow.
SPACES = " \u00a0\u2007\u2009\u202f"
#: The thousands marks: the characters that each stands for.
THOUSANDS = {".": ".", ",": ",", "'": "'\u2019", " ": SPACES}
SCIENTIFIC = re.compile(r"\+?[0-9]+(?:\.[0-9]*)?[eE][+-]?[0-9]{1,3}")
#: 5.146 is 5146 to some people and a fraction to others.
UNCLEAR = re.compile(r"\+?[1-9][0-9]{0,2}(?:\.[0-9]{3})+(?:,[0-9]*)?")
#: 1.234.567 and 5.146,00 cannot be fractions.
POINTS_GROUP = re.compile(r"\+?[1-9][0-9]{0,2}(?:(?:\.[0-9]{3}){2,}(?:,[0-9]*)?|\.[0-9]{3},[0-9]*)")
#: The percentage in ``120 (49.4%)``.
PER_CENT = rf"(?:[{SPACES}]*\([0-9]+(?:[.,][0-9]+)?[{SPACES}]*%\))"
NUMBER_LIKE = re.compile(
    rf"[+-]?[0-9][0-9.,'\u2019{SPACES}]*(?:[eE][+-]?[0-9]+)?[{SPACES}]*%?{PER_CENT}?"
)
#: A share, 12.5 or 12,5 %; group 1 is the number.
SHARE = re.compile(rf"\+?([0-9]+(?:[.,][0-9]+)?)[{SPACES}]*%?")
#: Sizes that often stand for a missing one.
CODES_OF_MISSING = frozenset(10**k - 1 for k in range(3, 9))
#: 2024-05-01, 1.5.2024, 05/01/24, perhaps with a time; 20240501; a year.
DATE = re.compile(
    r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](?:\d{2}|\d{4}))(?:[ T].*)?"
    r"|(?:19|20)\d\d(?:(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01]))?"
)
NOT_FINITE = {"nan", "inf", "-inf"}
#: How programs write that a value is missing.
MISSING = NOT_FINITE | {"na", "n/a", "#n/a", "null", "none", "-"}


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# All words are in lower case and without accents.
#: Totals, in many languages; no client has such a name.
TOTALS = _set(
    "total totals tot sum overall grandtotal "
    "gesamt insgesamt gesamtsumme gesamtzahl gesamtanzahl gesamtergebnis summe endsumme "
    "totaux totale totali totales totaal totalt totais razem ogo\u0142em celkem yhteensa osszesen "
    "toplam итого всего 合計 合计 総計 总计 總計 \u03c3"
)
#: Totals of a part of the clients.
SUBTOTALS = _set(
    "subtotal subtotals subtotale subtotaal soustotal soustotaux zwischensumme teilsumme 小計 小计"
)
MEANS = _set("mean average minimum maximum mittelwert durchschnitt moyenne promedio gemiddelde")
#: Totals that are also proper names: the Somme is a river, Summa a group of hospitals.
UNSURE = _set("somme somma suma soma som summa ensemble")
#: Also a group of hospitals.
MEDIAN = _set("median mediane")
#: Statistics that a client may be called too: they count only below the clients, beside a total or
#: a mean. In the form of :func:`~fedcohort.client_files.table.form`.
STATISTICS = MEDIAN | _set(
    "min max count n std stddev stdev stddeviation standarddeviation sd var variance range "
    "q1 q3 25% 50% 75%"
)
ALL = _set("all alle aller tous toutes tutti tutte todos todas")
#: Words that may go with these and name no client.
OTHERS = _set(
    "of the for in over across and combined together grand general number count counts size sizes "
    "n cohort dataset study train training test validation "
    "de des du la le les et der die das den und von zusammen los las dei delle generale"
)
#: Clients and samples, in the plural.
PLURALS = _set(
    "clients hospitals clinics sites centres centers institutions nodes devices users locations "
    "regions groups units partners samples examples records rows instances observations patients "
    "cases participants subjects images kliniken krankenhauser standorte zentren hauser "
    "einrichtungen patienten falle regionen hopitaux cliniques etablissements hospitales centros "
    "pacientes ospedali centri pazienti hospitais ziekenhuizen hosp"
)
TRIGGERS = TOTALS | SUBTOTALS | MEANS | UNSURE | MEDIAN | ALL
KNOWN = TRIGGERS | OTHERS | PLURALS
BEGINNINGS = KNOWN | _set("sub sous zwischen teil")
#: Two words that are also written as one: sub-total, sous total.
COMPOUND = re.compile(r"\b(sub|sous|zwischen|teil)[\s-]+(?=tota|summe)")

#: Footnotes that begin with a word. French puts a space before the colon.
SOURCE = re.compile(
    r"(sources?|notes?|n\.?b\.?|footnotes?|remarks?|comments?|legend|abbreviations|"
    r"(last )?updated?( on)?|as of|(exported|printed|generated|created|downloaded|retrieved)"
    r"( on| by)?|erstellt( am| von)?|quellen?|anmerkung(en)?|hinweise?|fußnoten?|"
    r"stand|datenstand|legende|légende|remarques?|nota|fuentes?|fonte|bron)\s?:",
    re.IGNORECASE,
)
#: The last line of a query's answer: ``(300 rows)``.
ROWS = re.compile(r"\(?[0-9]+ rows?\)?( in set.*)?")
#: Footnotes that begin with a mark: * ** † (1) [1] 1) ¹ #.
MARK = re.compile(r"(?:[*†‡§#]+|\(?[0-9a-z]\)|\[[0-9a-z]\]|[¹²³⁴-⁹]+)(\s*)\S")
#: A unit in a second header line: (n), [%].
UNIT = re.compile(r"\(.*\)|\[.*\]|[%#]")
#: A cell of a line that only divides: ``|---|---:|``, ``----+----``.
RULE = re.compile(r"[\s:+|]*[-=_]{3,}[\s:+|=_-]*|\s*")
#: The number of a title such as "Samples per hospital, 2024".
YEAR = re.compile(r"(?:19|20)[0-9]{2}")

#: Words for a client's samples, and for the client.
SAMPLES = ("sample", "example", "record", "row", "instance", "observation", "datapoint")
CLIENTS = (
    "client", "hospital", "site", "centre", "center", "institution", "node", "device", "user",
    "clinic",
)  # fmt: skip
#: How a number of samples is written, with {} for the word.
NUMBERS_OF = ("n{}s", "num{}s", "no{}s", "nr{}s", "numberof{}s", "{}s", "{}count", "{}size")
#: Who counts as a sample if no column has one of these names, and words for their number.
PEOPLE = _set(
    "patient patients case cases participant participants subject subjects effectif effectifs cas "
    "images scans slides "
    "patienten patientinnen patientenzahl patientenanzahl falle fallzahl fallzahlen pazienti casi "
    "paziente pacientes casos sujetos patienter pacjenci probanden teilnehmer malades individus"
)
NUMBER_WORDS = _set(
    "n no nr nb num number numbers of the count counts total sum all anzahl der zahl nombre "
    "numero de des d numero di aantal liczba antal"
)
#: Names of percentages; of importances, which may also be whole numbers of any sum; of dates and
#: numbers that count nothing.
SHARES = _set(
    "share shares percent percentage percentages pct proportion fraction anteil prozent part "
    "pourcentage porcentaje percentuale quota"
)
WEIGHTS = _set("weight weights importance gewicht")
NO_COUNTS = _set(
    "mean average avg median mittelwert durchschnitt moyenne sd std min max per rate ratio score "
    "age ages alter bmi resolution width height length duration dauer price cost costs budget "
    "version level ik nummer number kennzeichen code codes "
    "date day month year datum jahr annee ano since founded opened updated visit time timestamp "
    "id nr no key zip plz postcode postal phone tel telefon fax rank lat lon latitude "
    "longitude index row line"
)
#: As in ``samples_per_client``, which is a number of samples.
PER_CLIENT = re.compile(rf"(?:^|[\s_-])per[\s_-](?:{'|'.join(CLIENTS)})s?(?![a-z])", re.IGNORECASE)
#: A number with one of these units does not count samples.
UNITS = _set("mb gb kb tb bytes kg km days hours years euro eur usd")
#: Usual names of sizes, but only if no other column has one.
LAST_NAMES = (
    *("anzahl", "antal", "aantal"),
    *("ntrain", "numtrain", "trainsize", "trainsamples", "trainingsamples"),
)
#: The usual names of each column, the preferred first, in the form of :func:`form`.
USUAL: dict[str, list[str]] = {
    "size": [
        *("size", "sizes"),
        *(number.format(word) for number in NUMBERS_OF for word in SAMPLES),
        *("datasetsize", "datasize", "count", "counts", "n", *LAST_NAMES),
    ],
    "id": [
        *("id", "ids", "clientid", "clientids", "cid", "client", "clients", "clientname"),
        *("name", "names"),
        *(word + end for word in CLIENTS[1:] for end in ("id", "", "s", "name")),
        *("klinik", "krankenhaus", "spital", "standort", "zentrum", "einrichtung", "haus"),
        *("hopital", "clinique", "etablissement", "centro", "ospedale", "ziekenhuis"),
    ],
    "group": [
        *("group", "groups", "groupid", "groupname", "stratum", "strata", "stratumid"),
        *(word + end for word in ("region", "cluster") for end in ("", "s", "id", "name")),
    ],
}
#: Names that need no note: those of the documentation.
OWN_NAMES = {role: names[:2] for role, names in USUAL.items()}
