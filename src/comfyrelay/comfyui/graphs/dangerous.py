"""Node classes of public packs that are unsafe in a tenant's graph, grouped by their capabilities.

Names are compared by their lower-cased letters and digits only, so that `Load Image From Url (mtb)` and
`LoadImageFromURL` match one rule. A `*` at either end matches anything. An administrator can allow false positives by
name.
"""

from dataclasses import dataclass
from functools import lru_cache

_CODE = "it runs code or commands"
_MACHINE = "it reads data from the machine"
_ADDRESSES = "it calls addresses that the graph chooses"
_PATHS = "it reads or writes paths that the graph chooses"

DANGERS: dict[str, str] = {
    _CODE: """
        *exec *pyexec* *execpython* *pythonexec* execstr* *runpython* *pythoncode* *pythonscript* *evalpython* anypython
        *pythoneval* *pythonnode *nodepython *pyeval* *pycode* *pypromptgenerator* *srleval eval *evalnode *evalas
        evalfloat* evalint* aceexpressioneval mathexpressionmtb buildcolorrangehsvadvanced* filtercontour findcontour
        *javascript* runjs dandy* asterr saveasterr anynode anynodeanthropic anynodegemini anynodelocal *powerputer
        shellcommand* shellexecutor shellcode* bash *flybash *terminal terminalnode *terminalcommand* *runcommand*
        *customcmd* *localcommand* *codeexecut* *executecode* *runcode* *coderunner* *subprocess* *powershell*
        *externalprogram* *claudecode* *gitclone* *gitinstaller* *pipinstall* scriptseedv dpkanyeval
    """,
    _MACHINE: """
        *envvar* *environmentvar* *getenv* *screencap* *screenshot* *webcam* *cameracapture* *imagegrabpil *clipboard*
        *sysinfo* *systeminfo*
    """,
    _ADDRESSES: """
        *fromurl* *byurl* *imageurl *videourl *audiourl *urlimage* *urlloader* *urltoimage* *urltovideo* *loadurl*
        *withurl* *orurl *fromhttp* *httpurl* *urldownload* *downloader* *hfdownload* *autodownload* *filedownload*
        downloadfile* downloadimage* downloadaudio* downloadurl* downloadmodel* downloadlora* downloadcheckpoint*
        downloadcivitai* downloadhugging* *httpget* *httppost* *httpput* *httppatch* *httpdelete* *httphead
        *httprequest* *httpcall* *httpupload* *sendhttp* *fetchapi* *fetchremote* *requesturl apirequest* *restapi*
        *apicall* getrequestnode postrequestnode formpostrequestnode *customrequest *webhook* *telegram* *discord*
        *sendemail* *sendmail* ftp* saveimagescp *webdav* *mqtt* *froms3* *tos3* *s3upload* *s3download* *loadimages3*
        *saveimages3* *uploadfiles3 s3load* s3save* *s3bucket* *ossupload* *gcsupload* *azureblob* *azurestorage*
        *gcpstorage* *supabase* *fileupload* *imageuploader *videouploader *webscrap* *webpage* *mcpremote* *sqlselect*
        *fromredis *toredis setredis* *redismemo
    """,
    _PATHS: """
        *frompath* *bypath* *withpath *topath* *savepath* *localpath* *absolutepath* *saveabsolute* *pathloader
        *loadimagepath* *loadimagespath* *loadvideopath* *loadaudiopath* *videopath *audiopath *ffmpegpath *imagepath2*
        *fromdir *fromdirectory* *fromdir* *indirectory* *todir *todirectory* *directoryloader* *directorycrawl*
        *imagedirectory* *videodirectory* *audiodirectory* *textdirectory* *ensuredirectory* *makedir *loadaudiodir
        *fromfolder* *infolder* *tofolder* *loadfolder* *folderloader* *imagefolder* *folderimage* *folderscan*
        *folderparser* *folderqueue* *folderiterator* *createfolder* *deletefolder* *clearfolder* *foldercleaner*
        *folderdeleter* *cleanfolders *cleardirectory* *listdir* *listfiles* *filelist* *pathglob *randomfile*
        *fromfile *fromfiles* *fromfilenode *fromfileinspire *tofile *tofiles *tofilenode *readfile* *writefile*
        *filereader *filewriter *binaryfile* loadfile loadfilenode *loadanyfile* *textfile* *txtfile* *fromtxt*
        *loadtxt* *savetxt* loadtextpysssss savetextpysssss *savestring* *savejson* *loadjson *jsonfile* *yamlfile*
        *csvfile* *loadcsv* *savecsv* *readcsv* *writecsv* *loadexcel* *readexcel* *deletefile* *removefile* *movefile*
        *filemover *renamefile* *copyfile* *filecopy* *filemove* *filedelete* *filerename* *deleteinput* *deleteoutput*
        *removelocal* *unzip* *loadzip* *fromzip* *loadimagesequence* *saveimagesequence* *loadlastimage* *latestimage*
        *latestvideo* loadimageoutput loadimagebatch imagesave imagehistoryloader exportapi loadcache cachenode
        writetogif writetovideo creategridimage vhsloadimages vhsloadaudio vhspruneoutputs easyloadimagesforloop
        easysavetext* easyisfileexist crloadimagelist* crloadanimationframes crloadflowframes crloadgifaslist
        crloadtextlist crloadvaluelist *loadimagedataset* *saveimagedataset* *datasetfrom* *datasetto*
        loadtrainingdataset savetrainingdataset loadimagesetfrom* loadimagetextset*
    """,
}


@dataclass(frozen=True, slots=True)
class _Rule:
    """Patterns split into exact names, prefixes, suffixes and substrings, each matched the fastest way."""

    why: str
    names: frozenset[str]
    prefixes: tuple[str, ...]
    suffixes: tuple[str, ...]
    substrings: tuple[str, ...]

    @classmethod
    def of(cls, why: str, patterns: str) -> "_Rule":
        words = patterns.split()
        return cls(
            why=why,
            names=frozenset(word for word in words if "*" not in word),
            prefixes=tuple(word[:-1] for word in words if word.endswith("*") and not word.startswith("*")),
            suffixes=tuple(word[1:] for word in words if word.startswith("*") and not word.endswith("*")),
            substrings=tuple(word[1:-1] for word in words if word.startswith("*") and word.endswith("*")),
        )

    def covers(self, name: str) -> bool:
        return (
            name in self.names
            or name.startswith(self.prefixes)
            or name.endswith(self.suffixes)
            or any(part in name for part in self.substrings)
        )


_RULES = tuple(_Rule.of(why, patterns) for why, patterns in DANGERS.items())


@lru_cache(maxsize=8192)
def danger_of(class_type: str) -> str | None:
    """Return why a class is dangerous in a tenant's graph; `None` if it is not known to be dangerous."""
    name = "".join(char for char in class_type.lower() if char.isascii() and char.isalnum())
    return next((rule.why for rule in _RULES if rule.covers(name)), None)
